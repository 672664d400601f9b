"""Trains small models with different attentions on tasks in which attention matters.

    python -m benchmarks.learning              # the core, an hour on two cores
    python -m benchmarks.learning --quick      # minutes: too short for conclusions
    python -m benchmarks.learning --full       # a day; continues after an interruption
    python -m benchmarks.learning --times      # times a step of each row and task

Every task has controls: no attention, exact attention, local attention. Each run adds a
line to `runs.jsonl` in `--output`; runs in that file are not repeated. `--tasks`,
`--rows`, `--key-dims` and `--seeds` select runs, also outside the core. Then writes
`tables.md` of these runs, or with `--full` of all runs in the file. `--report-only`
writes it from the runs that exist.
"""

from benchmarks import runner
from benchmarks.learning import models, report, study, tasks

SEEDS = 0, 1, 2
FOLDS = 0, 1, 2, 3, 4
EVALUATIONS = 12
KEY_DIM, KEY_DIMS = 16, (16, 32, 64)
# Factors of a task's learning rate that `--full` also tries with the first seed.
OTHER_RATES = 1 / 3, 3
# Tasks for which `--full` adds `models.FURTHER`, and tasks with larger heads.
OF_FURTHER_ROWS = "recall 512", "bytes 512, rotary"
OF_SIZES = "recall 128", "bytes 512, rotary"
# With rotary positions models need fewer steps.
ROTARY_STEPS = 600
# Rows that `--quick` omits.
QUICK_LEAVES_OUT = {"softmax", "window + softmax"}
# Rows that only `--full` has time for, and rows of `models.FURTHER` in the core.
LEFT_OUT = dict.fromkeys(("images 768", "digits"), ("taylor", "window + taylor"))
ADDED = {"recall 512": ("window + softmax, high gain",)}
ALL_ROWS = models.ROWS + models.FURTHER


def main(argv=None):
    names = [task.name for task, _ in (*core(), *further())]
    choices = {"tasks": names, "rows": ALL_ROWS, "key_dims": KEY_DIMS}
    more = dict(times=False, key_dims=[int], output=runner.RUNS / "learning")
    options = runner.options(__doc__, argv, choices, **study.OPTIONS, **more)
    study.run(options, plan(options), report.write)


def core():
    """Yields tasks with their seeds; the seed of digits is the fold."""
    yield recall_512(), SEEDS
    options = dict(steps=600, batch_size=4, learning_rate=2e-3)
    yield tasks.images(window=64, **options), SEEDS
    for fold in FOLDS:
        options = dict(steps=400, batch_size=32, learning_rate=3e-3)
        yield tasks.digits(fold, window=4, **options), (fold,)


def further():
    """Yields tasks outside the core, with their seeds."""
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


def parts(options):
    """Yields task, seeds, rows, head sizes and factors of the learning rate.

    `--full` has every task, row, size and rate, but not all combinations: core tasks
    have all seeds, and three rates with the first seed; other tasks have the first seed
    only. Further rows and larger heads are limited to tasks where they matter.
    """
    usual = (KEY_DIM,), (1,)
    if not options.full:
        sizes = options.key_dims or (KEY_DIM,)
        for task, seeds in [*core(), *further()] if options.tasks else core():
            if options.quick and not options.seeds:
                seeds = first(seeds)
            if options.rows:
                rows = ALL_ROWS
            elif options.quick:
                rows = [row for row in models.ROWS if row not in QUICK_LEAVES_OUT]
            else:
                rows = core_rows(task)
            yield task, seeds, rows, sizes, (1,)
        return
    for task, seeds in core():
        yield task, seeds, core_rows(task), *usual
        yield task, seeds, models.ROWS, *usual
        yield task, first(seeds), models.ROWS, (KEY_DIM,), OTHER_RATES
    for task, seeds in further():
        yield task, first(seeds), models.ROWS, *usual
    for task, seeds in (*core(), *further()):
        if task.name in OF_FURTHER_ROWS:
            yield task, first(seeds), models.FURTHER, *usual
        if task.name in OF_SIZES:
            yield task, first(seeds), models.ROWS, KEY_DIMS[1:], (1,)


def first(seeds):
    return tuple(seed for seed in seeds if seed == 0)


def core_rows(task):
    rows = *models.ROWS, *ADDED.get(task.name, ())
    return [row for row in rows if row not in LEFT_OUT.get(task.name, ())]


def plan(options):
    """Returns the arguments of `training.train` for each run, in order."""
    runs = study.planned(parts(options), options, EVALUATIONS)
    return sorted(runs, key=lambda run: run["key_dim"])


if __name__ == "__main__":
    main()
