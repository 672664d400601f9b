"""How long a step takes: `benchmarks.learning.times` of these models."""

from benchmarks.learning import times
from benchmarks.long_range import models, rows


def complete(runs, folder):
    """Times each row of the tasks of runs once.

    Args:
        runs: arguments of `training.train`.
        folder: path.
    """
    tasks = {(run["task"].name, run["row"]): run["task"] for run in runs}
    cases = [
        {"task": task, "row": row}
        for (_, row), task in tasks.items()
        if row not in rows.NO_MODELS
    ]
    times.complete(timed, cases, folder)


def timed(task, row):
    return task.name, row, times.of_step(made(task, row), task)


def made(task, row):
    return models.make_model(task, models.make_encoder(task, row, seed=0))
