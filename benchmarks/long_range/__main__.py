"""Trains small models with every attention on tasks of long sequences.

    python -m benchmarks.long_range              # the core, two hours on two cores
    python -m benchmarks.long_range --full       # every row and rate; a day
    python -m benchmarks.long_range --costs      # tokens a second, and memory
    python -m benchmarks.long_range --times      # times a step of each row and task

Every task has controls: no attention, exact attention, local attention. Each run adds a
line to `runs.jsonl` in `--output`; runs in that file are not repeated. `--tasks`,
`--rows` and `--seeds` select runs, `--steps` makes them shorter. Then writes
`tables.md` of these runs, or with `--full` of all runs in the file. `--report-only`
writes it from the runs that exist.
"""

import dataclasses

from benchmarks import runner
from benchmarks.learning import models, published, report, study, tasks
from benchmarks.learning.study import OTHER_RATES, SEEDS
from benchmarks.long_range import costs

EVALUATIONS = 6
FEATURES = f"64{models.FEATURES}"
PERFORMER = f"window + softmax, {FEATURES}"
GAINS = f"window + softmax, {models.GAINS_IN_TURN}, {FEATURES}"
# The number of Taylor features follows from the head size.
TAYLOR = "window + taylor"
# Rows of the core; the first three are the controls of every task.
CORE = (
    *(models.WITHOUT, models.EXACT, models.WINDOW),
    *(PERFORMER, GAINS, "Big Bird", "Linear Transformer"),
)
ROWS = (
    *(*CORE, f"window + softmax, high gain, {FEATURES}", TAYLOR),
    *(f"softmax, {FEATURES}", f"relu, {FEATURES}"),
    *(row for row in published.ROWS if row not in CORE),
)
# Factors that were best for some rows with the first seed; all seeds also have them.
SLOWER = models.WINDOW, GAINS, "Big Bird", "Linformer", "Sinkhorn"
FASTER = PERFORMER, GAINS, TAYLOR, "Synthesizer"
BETTER_RATES = (
    ("recall 512", 1 / 3, (models.WINDOW,)),
    ("recall 512", 3, ("Linear Transformer",)),
    ("digits 144", 3, (models.WITHOUT,)),
    ("digits 144", 1 / 3, SLOWER),
    ("bytes 512", 1 / 3, ("Linear Transformer",)),
    ("bytes 512", 3, FASTER),
)
# A baseline of the stored results. Its code left after commit dbe6cf37.
TOKEN_COUNTS = "token counts"
# What the page says beside `report.EXPLANATION`.
ABOUT = f"""\
"{TOKEN_COUNTS}" is a logistic regression on how often each token occurs (of the next
token: how often it comes after the one before): no network. Where a network does no
better, it has been trained too little to say which attention is better.

The second "after S s" is at the time in which exact attention takes all its steps. As
learning rates fall until the last step, slower rows are read in the middle of their
training."""


def main(argv=None):
    names = [task.name for task in core()]
    choices = {"tasks": names, "rows": ROWS}
    more = dict(times=False, costs=False, output=runner.RUNS / "long_range")
    options = runner.options(__doc__, argv, choices, **study.OPTIONS, **more)
    if options.costs:
        costs.complete(options.rows or ROWS, options.output / "costs.json")
        options.report_only = True
    study.run(options, plan(options), write)


def core():
    """Returns three tasks that two cores train within two hours."""
    models_of = dict(decay=True, has_reader=True)
    usual = dict(window=32, batch_size=8, **models_of)
    images = dict(steps=900, batch_size=32, learning_rate=4e-3, **models_of)
    of_bytes = dict(steps=600, learning_rate=6e-3, position_embedding=None)
    return [
        tasks.recall(512, 32, steps=900, learning_rate=3e-3, **usual),
        tasks.digits_anywhere(12, **images),
        dataclasses.replace(tasks.sources(512, **of_bytes, **usual), hidden_dim=64),
    ]


def parts(options):
    """Yields task, seeds, rows and factors of the learning rate.

    `--full` has everything, but not all combinations: all rows have three seeds, and
    three rates with the first seed.
    """
    for task in core():
        if not options.full:
            yield task, options.seeds or SEEDS, options.rows or CORE, (1,)
            continue
        yield task, SEEDS, ROWS, (1,)
        yield task, SEEDS[:1], ROWS, OTHER_RATES
        for name, factor, better in BETTER_RATES:
            if task.name == name:
                yield task, SEEDS, better, (factor,)


def plan(options):
    """Returns the arguments of `training.train` for each run, in order."""
    runs = study.planned(parts(options), options, EVALUATIONS)
    return [
        run
        for run in runs
        if run["task"].num_classes or run["row"] not in published.NOT_CAUSAL
    ]


def write(runs, folder):
    """Writes `tables.md` from runs and the folder's costs; returns the text."""
    title = "# Which attention? Tasks of long sequences"
    left_out = "std", "state of a layer", report.LEARNED_AFTER
    exact = (models.EXACT,)
    rows = TOKEN_COUNTS, *ROWS
    parts = report.sections(title, runs, folder, rows, ABOUT, left_out, also=exact)
    return runner.write_page(folder, parts + costs.section(folder / "costs.json"))


if __name__ == "__main__":
    main()
