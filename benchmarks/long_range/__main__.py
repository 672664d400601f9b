"""Trains small models with every attention on tasks of long sequences.

    python -m benchmarks.long_range              # the core, two hours on two cores
    python -m benchmarks.long_range --quick      # minutes: too short for conclusions
    python -m benchmarks.long_range --full       # every row and rate; a day
    python -m benchmarks.long_range --costs      # tokens a second, and memory
    python -m benchmarks.long_range --times      # times a step of each row and task

Every task has controls: no attention, exact attention, local attention, and a logistic
regression on token counts. Each run adds a line to `runs.jsonl` in `--output`; runs in
that file are not repeated. `--tasks`, `--rows` and `--seeds` select runs. Then writes
`tables.md` of these runs, or with `--full` of all runs in the file. `--report-only`
writes it from the runs that exist.
"""

import dataclasses
import itertools

from benchmarks import runner
from benchmarks.learning import study, tasks
from benchmarks.long_range import costs, models, report, training

SEEDS = 0, 1, 2
EVALUATIONS = 6
# Factors of a task's learning rate that `--full` also tries with the first seed.
OTHER_RATES = 1 / 3, 3
# Factors that were best for some rows with the first seed; all seeds also have them.
SLOWER = models.WINDOW, models.GAINS, "Big Bird", "Linformer", "Sinkhorn"
FASTER = models.PERFORMER, models.GAINS, models.TAYLOR, "Synthesizer"
BETTER_RATES = (
    ("recall 512", 1 / 3, (models.WINDOW,)),
    ("recall 512", 3, ("Linear Transformer",)),
    ("digits 144", 3, (models.WITHOUT,)),
    ("digits 144", 1 / 3, SLOWER),
    ("bytes 512", 1 / 3, ("Linear Transformer",)),
    ("bytes 512", 3, FASTER),
)
# Rows of `--quick`.
CONTROLS = models.WITHOUT, models.EXACT, models.WINDOW, models.PERFORMER
QUICK_ROWS = models.COUNTS, *CONTROLS


def main(argv=None):
    names = [task.name for task in core()]
    choices = {"tasks": names, "rows": models.ROWS}
    more = dict(times=False, costs=False, output=runner.RUNS / "long_range")
    options = runner.options(__doc__, argv, choices, **study.OPTIONS, **more)
    if options.costs:
        costs.complete(options.rows or models.MODELS, options.output / "costs.json")
        options.report_only = True
    wanted = plan(options)
    if options.times:
        wanted = [run for run in wanted if run["row"] != models.COUNTS]
    study.run(options, training.train, models.make_model, wanted, report.write)


def core():
    """Returns three tasks that two cores train within two hours."""
    usual = dict(window=32, batch_size=8)
    images = dict(steps=900, batch_size=32, learning_rate=4e-3)
    of_bytes = dict(steps=600, learning_rate=6e-3, position_embedding="rotary")
    return [
        tasks.recall(512, 32, steps=900, learning_rate=3e-3, **usual),
        tasks.digits_anywhere(12, **images),
        dataclasses.replace(tasks.sources(512, **of_bytes, **usual), hidden_dim=64),
    ]


def parts(options):
    """Yields tasks, rows, seeds and factors of the learning rate.

    `--full` has everything, but not all combinations: all rows have three seeds, and
    three rates with the first seed.
    """
    first = SEEDS[:1]
    if not options.full:
        chosen = options.rows or (QUICK_ROWS if options.quick else models.CORE)
        seeds = options.seeds or (first if options.quick else SEEDS)
        yield core(), chosen, seeds, (1,)
        return
    yield core(), models.ROWS, SEEDS, (1,)
    yield core(), models.ROWS, first, OTHER_RATES
    for name, factor, better in BETTER_RATES:
        named = [task for task in core() if task.name == name]
        yield named, better, SEEDS, (factor,)


def plan(options):
    """Returns the arguments of `training.train` for each run, in order."""
    runs = [
        arguments(task, row, seed, factor, options.quick)
        for of, rows, seeds, factors in parts(options)
        for seed, task, row, factor in itertools.product(seeds, of, rows, factors)
        if is_run(task, row)
    ]
    return study.planned(runs, options)


def is_run(task, row):
    if row == models.COUNTS and not task.num_classes and task.measure == "accuracy":
        return False  # counts of token pairs say nothing there
    return bool(task.num_classes) or row not in models.NOT_CAUSAL


def arguments(task, row, seed, factor, quick):
    if row == models.COUNTS:
        return study.run_of(task, row, seed, None, evaluations=1, steps=0)
    rate = factor * task.learning_rate
    return study.run_of(task, row, seed, rate, EVALUATIONS, quick)


if __name__ == "__main__":
    main()
