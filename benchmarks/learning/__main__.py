"""Trains small models with different attentions on tasks in which attention matters.

    python -m benchmarks.learning              # the core, an hour on two cores
    python -m benchmarks.learning --quick      # minutes: a look, too short to conclude
    python -m benchmarks.learning --full       # a day; goes on where it was stopped
    python -m benchmarks.learning --times      # of a step of each row and task

Every task has its controls: no attention, exact attention, local attention. Each
run appends a line to `runs.jsonl` in `--output`, and is not made again as long as it
stands there; `--tasks`, `--rows`, `--key-dims` and `--seeds` choose some, of the core
and of what it leaves out. It then writes `tables.md`, after `--full` of all runs in
that file; `--report-only` does so with the runs that there are.
"""

import argparse
import pathlib

from benchmarks import processes
from benchmarks.learning import models, report, tasks, times, training

SEEDS = 0, 1, 2
FOLDS = 0, 1, 2, 3, 4
EVALUATIONS = 12
KEY_DIM = 16
KEY_DIMS = 16, 32, 64
# Of the learning rate of a task: what `--full` tries beside it with the first seed.
OTHER_RATES = 1 / 3, 3
# Where `--full` has `models.FURTHER`, and where larger heads.
OF_FURTHER_ROWS = "recall 512", "bytes 512, rotary"
OF_SIZES = "recall 128", "bytes 512, rotary"
# Of tasks with rotary positions, with which models need fewer.
ROTARY_STEPS = 600
# Of `--quick`: what part of the steps, how often it measures, and which features.
QUICK_PART, QUICK_EVALUATIONS = 20, 3
QUICK_LEAVES_OUT = {"softmax", "window + softmax"}
# What the core has no time for, and `--full` has; and what it takes of the further.
LEFT_OUT = {
    (task, row)
    for task in ("images 768", "digits")
    for row in ("taylor", "window + taylor")
}
ADDED = {("recall 512", "window + softmax, high gain")}


def main(argv=None):
    """Reads the command line, trains what is missing and writes the report."""
    parser = make_parser(__doc__, "learning")
    parser.add_argument("--tasks", nargs="+", choices=task_names())
    parser.add_argument("--rows", nargs="+", choices=models.ROWS + models.FURTHER)
    parser.add_argument("--key-dims", nargs="+", type=int, choices=KEY_DIMS)
    parser.add_argument("--seeds", nargs="+", type=int, choices=FOLDS)
    options = parser.parse_args(argv)
    wanted = plan(options)
    without_runs = set(options.seeds or ()) - {run["seed"] for run in wanted}
    if without_runs:
        parser.error(f"No chosen task has seed {min(without_runs)}")
    if options.times:
        times.complete(times.timed, cases(wanted), options.output)
    print(
        report.write(complete(training.train, wanted, name_of, options), options.output)
    )


def make_parser(about, name):
    """The options that this command, `long_range` and `long_data` have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=about.splitlines()[0]
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a twentieth of the steps")
    length.add_argument("--full", action="store_true", help="every task, row and rate")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="runs at once, each on one core; 0 for one after another on all cores",
    )
    parser.add_argument(
        "--times", action="store_true", help="time a step of each, train nothing"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="train nothing, read what is there"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs", *name.split("."))
    )
    return parser


def complete(train, wanted, name_of, options):
    """Trains what is missing unless told otherwise; returns the runs there are."""
    idle = options.report_only or options.times or getattr(options, "costs", False)
    path = options.output / "runs.jsonl"
    workers = None if idle else options.workers
    return processes.complete(train, wanted, path, name_of, workers, options.full)


def core():
    """Tasks with their seeds; a fold of the digits is its seed."""
    yield recall_512(), SEEDS
    options = dict(steps=600, batch_size=4, learning_rate=2e-3)
    yield tasks.images(window=64, **options), SEEDS
    for fold in FOLDS:
        options = dict(steps=400, batch_size=32, learning_rate=3e-3)
        yield tasks.digits(fold, window=4, **options), (fold,)


def further():
    """Cases that the core leaves out."""
    recall = dict(steps=250, batch_size=32, learning_rate=3e-3)
    short = tasks.recall(128, 16, window=16, **recall)
    yield short, SEEDS
    recall |= dict(steps=600, batch_size=4)
    yield tasks.recall(2048, 64, window=128, **recall), SEEDS
    yield bytes_512(1200), SEEDS
    yield tasks.with_rotary(bytes_512(ROTARY_STEPS)), SEEDS
    options = dict(steps=ROTARY_STEPS, batch_size=2, learning_rate=1.5e-3)
    yield tasks.with_rotary(tasks.sources(2048, window=128, **options)), SEEDS
    yield tasks.with_rotary(short), SEEDS
    yield tasks.with_rotary(recall_512()), SEEDS
    options = dict(steps=1200, batch_size=8, learning_rate=2e-3)
    yield tasks.needle(1024, window=128, **options), SEEDS


def recall_512():
    options = dict(steps=600, batch_size=8, learning_rate=3e-3)
    return tasks.recall(512, 32, window=64, **options)


def bytes_512(steps):
    options = dict(steps=steps, batch_size=8, learning_rate=1.5e-3)
    return tasks.sources(512, window=64, **options)


def task_names():
    """Every task that can be asked for by name."""
    return list(dict.fromkeys(task.name for task, _ in (*core(), *further())))


def parts(options):
    """Yields task, seeds, rows, sizes of heads and factors of the learning rate.

    With `--full` every task, row, size and rate, but not each with each: the core has
    all its seeds and three rates of the first, other tasks have the first seed. Further
    rows and larger heads are of tasks that tell of them.
    """
    if not options.full:
        sizes = options.key_dims or (KEY_DIM,)
        for task, seeds in [*core(), *further()] if options.tasks else core():
            if options.quick and not options.seeds:
                seeds = first(seeds)
            yield task, seeds, wanted_rows(task, options), sizes, (1,)
        return
    for task, seeds in core():
        yield task, seeds, core_rows(task), (KEY_DIM,), (1,)
        yield task, seeds, models.ROWS, (KEY_DIM,), (1,)
        yield task, first(seeds), models.ROWS, (KEY_DIM,), OTHER_RATES
    for task, seeds in further():
        yield task, first(seeds), models.ROWS, (KEY_DIM,), (1,)
    for task, seeds in (*core(), *further()):
        if task.name in OF_FURTHER_ROWS:
            yield task, first(seeds), models.FURTHER, (KEY_DIM,), (1,)
        if task.name in OF_SIZES:
            yield task, first(seeds), models.ROWS, KEY_DIMS[1:], (1,)


def first(seeds):
    return tuple(seed for seed in seeds if seed == 0)


def wanted_rows(task, options):
    if options.rows:
        return models.ROWS + models.FURTHER
    if options.quick:
        return [row for row in models.ROWS if row not in QUICK_LEAVES_OUT]
    return core_rows(task)


def core_rows(task):
    return [
        row
        for row in models.ROWS + models.FURTHER
        if (row in models.ROWS and (task.name, row) not in LEFT_OUT)
        or (task.name, row) in ADDED
    ]


def plan(options):
    """Arguments of `training.train`, one run after another.

    The first seeds of all tasks come first, so that whoever stops early has a table.
    """
    runs = [
        {
            "task": task,
            "row": row,
            "key_dim": key_dim,
            "seed": seed,
            "learning_rate": factor * task.learning_rate,
            "steps": task.steps // (QUICK_PART if options.quick else 1),
            "evaluations": QUICK_EVALUATIONS if options.quick else EVALUATIONS,
        }
        for task, seeds, rows, key_dims, factors in parts(options)
        if is_asked(task.name, options.tasks)
        for seed in seeds
        if is_asked(seed, options.seeds)
        for key_dim in key_dims
        if is_asked(key_dim, options.key_dims)
        for row in rows
        if is_asked(row, options.rows)
        for factor in factors
    ]
    runs = {name_of(run): run for run in runs}.values()
    return sorted(runs, key=lambda run: (run["key_dim"], run["seed"]))


def is_asked(x, some):
    return some is None or x in some


def cases(runs):
    """Cases whose steps are timed: each task, row and head size once."""
    names = "task", "row", "key_dim"
    found = {(run["task"].name, run["row"], run["key_dim"]): run for run in runs}
    return [{name: run[name] for name in names} for run in found.values()]


def name_of(run):
    """Name that tells runs apart, in a plan and in `runs.jsonl`."""
    task = run["task"]
    task = task if isinstance(task, str) else task.name
    names = "row", "key_dim", "seed", "learning_rate", "steps"
    return (task, *(run[name] for name in names))


if __name__ == "__main__":
    main()
