"""Times training steps of all rows of a study on one machine.

Seconds of runs cannot be compared, as runs are from several machines.
"""

import itertools
import math
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.learning import models
from benchmarks.learning.training import step_of

# Steps that trace and compile, and steps that are timed.
FIRST_STEPS, STEPS = 3, 15
FILE = "times.json"
EXPLANATION = f"""\
Milliseconds of a step, and with them equal times, are from `--times`, which trains
nothing: medians of {STEPS} steps, on one thread of {{machine}}, with TensorFlow
{{tensorflow}}. Rows of one task may be from two days, which differ by up to 13 %."""


def complete(runs, folder):
    """Times a step of each task, row and head size; writes the file after each.

    Uses the same processes as training: processes that give memory back are slower.

    Args:
        runs: list of dicts; runs that have times are timed again.
        folder: path.

    Raises:
        ValueError: if the file has times of another machine.
    """
    path, here = folder / FILE, runner.machine()
    times = runner.read(path)
    if times.get("machine", here) != here:
        raise ValueError(
            f"{path} has times of {times['machine']}, and this is {here}: they cannot "
            "be compared. Give another --output, or move the file away."
        )
    cases = {(run["task"].name, row_of(run)): run for run in runs}.values()
    cases = [{x: run[x] for x in ("task", "row", "key_dim")} for run in cases]
    for name, row, seconds in runner.results(timed, cases, workers=1):
        times.setdefault(name, {})[row] = seconds
        times["machine"], times["tensorflow"] = here, tf.__version__
        runner.save(path, times)
        print(name, row, f"{1e3 * seconds:.0f} ms", flush=True)


def timed(task, row, key_dim):
    """Returns the names of a case's task and row, and the seconds of a step."""
    seconds = of_step(models.make_model(task, row, key_dim, seed=0), task)
    return task.name, row_of({"row": row, "key_dim": key_dim}), seconds


def of_step(model, task, steps=STEPS, jit_compile=True):
    """Returns the CPU seconds of a training step, by default compiled as a whole."""
    each = of_steps(model, task, jit_compile)
    seconds = list(itertools.islice(each, FIRST_STEPS + steps))
    return statistics.median(seconds[FIRST_STEPS:])


def of_steps(model, task, jit_compile=True):
    """Trains a model, and yields the CPU seconds of each step."""
    step = step_of(model, task.learning_rate, jit_compile)
    random = np.random.default_rng(0)
    for index in itertools.count(1):
        batch = [tf.constant(x) for x in task.draw(random, task.batch_size)]
        start = time.process_time()
        float(step(index, *batch))
        yield time.process_time() - start


def retold(runs, folder):
    """Returns runs whose curves have the seconds of the folder's times.

    If other rows of the task have times, a row without times gets nan, as seconds of
    training cannot be compared with times.
    """
    times, told = runner.read(folder / FILE), []
    for run in runs:
        if run["task"] in times:
            seconds = times[run["task"]].get(row_of(run), math.nan)
            curve = [
                [steps, steps * seconds, *rest] for steps, _, *rest in run["curve"]
            ]
            run = {**run, "curve": curve}
        told.append(run)
    return told


def explanation(folder):
    """Returns text about the folder's times; `None` if there are no times."""
    times = runner.read(folder / FILE)
    return EXPLANATION.format(**times) if times else None


def row_of(run):
    """Returns the name of a run's row in a file of times."""
    return f"{run['row']}, {run['key_dim']}"
