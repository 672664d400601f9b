"""How long a training step takes, of all rows on one machine: runs are of several."""

import itertools
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import machine
from benchmarks.learning import pool
from benchmarks.learning.training import step_of
from benchmarks.long_range import models, rows

# Those that compile, and those that are timed.
FIRST_STEPS, STEPS = 3, 15
FILE = "times.json"


def complete(runs, folder):
    """Times a step of the tasks and rows of runs, and writes them after each.

    Processes are those of training: `alone.call`'s give memory back, which takes time.

    Args:
        runs: arguments of `training.train`.
        folder: path; what its file of times has is timed again.

    Raises:
        ValueError: if the file has times of another machine.
    """
    path, here = folder / FILE, machine.name()
    times = read(path)
    if times.get("machine", here) != here:
        raise ValueError(
            f"{path} has times of {times['machine']}, and this is {here}: they cannot "
            "be compared. Give another --output, or move the file away."
        )
    pairs = {(run["task"].name, run["row"]): run["task"] for run in runs}
    cases = [
        {"task": task, "row": row}
        for (_, row), task in pairs.items()
        if row not in rows.NO_MODELS
    ]
    for name, row, seconds in pool.results(timed, cases, workers=1):
        times.setdefault(name, {})[row] = seconds
        times["machine"], times["tensorflow"] = here, tf.__version__
        path.write_text(json.dumps(times, indent=1) + "\n")
        print(name, row, f"{1e3 * seconds:.0f} ms", flush=True)


def timed(task, row):
    return task.name, row, of_step(task, row)


def of_step(task, row, steps=STEPS):
    """Seconds of a processor that a training step takes, compiled as in training."""
    seconds = list(itertools.islice(of_steps(task, row), FIRST_STEPS + steps))
    return statistics.median(seconds[FIRST_STEPS:])


def of_steps(task, row):
    """Trains a model, and yields the seconds of each step."""
    model = models.make_model(task, models.make_encoder(task, row, seed=0))
    step = step_of(model, task.learning_rate, True)
    random = np.random.default_rng(0)
    for index in itertools.count(1):
        batch = [tf.constant(x) for x in task.draw(random, task.batch_size)]
        start = time.process_time()
        float(step(index, *batch))
        yield time.process_time() - start


def retold(runs, folder):
    """Runs whose curves have the seconds of the folder's times, where it has some."""
    times = read(folder / FILE)

    def of_run(run):
        seconds = times.get(run["task"], {}).get(run["row"])
        if seconds is None:
            return run
        curve = [[steps, steps * seconds, *rest] for steps, _, *rest in run["curve"]]
        return {**run, "curve": curve}

    return [of_run(run) for run in runs]


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}
