"""Times a training step of all rows on one machine: runs are from several."""

import itertools
import json
import math
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import machine, processes
from benchmarks.learning import models
from benchmarks.learning.training import step_of

# Those that compile, and those that are timed.
FIRST_STEPS, STEPS = 3, 15
FILE = "times.json"
EXPLANATION = f"""\
Milliseconds of a step, and with them equal times, were measured in one go
(`--times`): medians of {STEPS} steps, on one thread of {{machine}},
with TensorFlow {{tensorflow}}, other programs beside it."""


def complete(timed, cases, folder):
    """Times steps, and writes them after each.

    Processes are those of training: those that give memory back take more time.

    Args:
        timed: function of a case to the names of its task and row, and seconds.
        cases: list of dicts, arguments of `timed`.
        folder: path; what its file of times has is timed again.

    Raises:
        ValueError: if the file has times of another machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, here = folder / FILE, machine.name()
    times = read(path)
    if times.get("machine", here) != here:
        raise ValueError(
            f"{path} has times of {times['machine']}, and this is {here}: they cannot "
            "be compared. Give another --output, or move the file away."
        )
    for name, row, seconds in processes.results(timed, cases, workers=1):
        times.setdefault(name, {})[row] = seconds
        times["machine"], times["tensorflow"] = here, tf.__version__
        path.write_text(json.dumps(times, indent=1) + "\n")
        print(name, row, f"{1e3 * seconds:.0f} ms", flush=True)


def timed(task, row, key_dim):
    model = models.make_model(task, row, key_dim, seed=0)
    return task.name, row_of({"row": row, "key_dim": key_dim}), of_step(model, task)


def of_step(model, task, steps=STEPS):
    """Seconds of a processor that a training step takes, compiled as in training."""
    seconds = list(itertools.islice(of_steps(model, task), FIRST_STEPS + steps))
    return statistics.median(seconds[FIRST_STEPS:])


def of_steps(model, task):
    """Trains a model, and yields the seconds of each step."""
    step = step_of(model, task.learning_rate, True)
    random = np.random.default_rng(0)
    for index in itertools.count(1):
        batch = [tf.constant(x) for x in task.draw(random, task.batch_size)]
        start = time.process_time()
        float(step(index, *batch))
        yield time.process_time() - start


def retold(runs, folder):
    """Runs whose curves have the seconds of the folder's times.

    Rows that are not timed have nan, where others of their task are: seconds of
    training, on any machine, cannot stand beside them.
    """
    times = read(folder / FILE)

    def of_run(run):
        if run["task"] not in times:
            return run
        seconds = times[run["task"]].get(row_of(run), math.nan)
        curve = [[steps, steps * seconds, *rest] for steps, _, *rest in run["curve"]]
        return {**run, "curve": curve}

    return [of_run(run) for run in runs]


def explanation(folder):
    """Text about the folder's times; `None` if there are none."""
    times = read(folder / FILE)
    return EXPLANATION.format(**times) if times else None


def row_of(run):
    """Name in a file of times for the row of a run."""
    return f"{run['row']}, {run['key_dim']}" if "key_dim" in run else run["row"]


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}
