"""Trains small models with different attentions on tasks in which attention matters.

    python -m benchmarks.learning              # the core, an hour on two cores
    python -m benchmarks.learning --full       # a day; continues after an interruption
    python -m benchmarks.learning --times      # times a step of each row and task

Every task has controls: no attention, exact attention, local attention. Each run adds a
line to `runs.jsonl` in `--output`; runs in that file are not repeated. `--tasks`,
`--rows` and `--seeds` select runs, also outside the core, `--steps` makes them shorter.
Then writes `tables.md` of these runs, or with `--full` of all runs in the file.
`--report-only` writes it from the runs that exist.
"""

from benchmarks import runner
from benchmarks.learning import models, report, study, tasks
from benchmarks.learning.study import OTHER_RATES, SEEDS

EVALUATIONS = 12
# With rotary positions models need fewer steps.
ROTARY_STEPS = 600
ALL_ROWS = models.ROWS + models.FURTHER


def main(argv=None):
    names = [task.name for task in (*core(), *further())]
    choices = {"tasks": names, "rows": ALL_ROWS}
    more = dict(times=False, output=runner.RUNS / "learning")
    options = runner.options(__doc__, argv, choices, **study.OPTIONS, **more)
    runs = study.planned(parts(options), options, EVALUATIONS)
    study.run(options, runs, report.write)


def core():
    """Returns two tasks that two cores train within an hour."""
    return [recall_512(), tasks.with_rotary(bytes_512(ROTARY_STEPS))]


def further():
    """Returns the tasks outside the core."""
    recall = dict(steps=600, batch_size=4, learning_rate=3e-3)
    needle = dict(steps=1200, batch_size=8, learning_rate=2e-3)
    return [
        tasks.recall(2048, 64, window=128, **recall),
        bytes_512(1200),
        tasks.with_rotary(recall_512()),
        tasks.needle(1024, window=128, **needle),
    ]


def recall_512():
    options = dict(steps=600, batch_size=8, learning_rate=3e-3)
    return tasks.recall(512, 32, window=64, **options)


def bytes_512(steps):
    options = dict(steps=steps, batch_size=8, learning_rate=1.5e-3)
    return tasks.sources(512, window=64, **options)


def parts(options):
    """Yields task, seeds, rows and factors of the learning rate.

    `--full` has every task, but not all combinations: core tasks have all rows and
    seeds, and three rates with the first seed; other tasks have `models.ROWS`.
    """
    if not options.full:
        rows = ALL_ROWS if options.rows else models.ROWS
        for task in (*core(), *further()) if options.tasks else core():
            yield task, SEEDS, rows, (1,)
        return
    for task in core():
        yield task, SEEDS, ALL_ROWS, (1,)
        yield task, SEEDS[:1], models.ROWS, OTHER_RATES
    for task in further():
        yield task, SEEDS, models.ROWS, (1,)


if __name__ == "__main__":
    main()
