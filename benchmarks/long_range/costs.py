"""Measures a training step of the small models: tokens a second, and memory.

As in `fit` on a CPU, layers compile themselves, and the whole step is not compiled.
"""

import itertools

import numpy as np
import tensorflow as tf

from benchmarks import runner, worker
from benchmarks.learning import times
from benchmarks.learning.tasks import Task
from benchmarks.long_range import models

LENGTHS = 1024, 4096, 16384
WINDOW = 64
VOCABULARY_SIZE = 256
STEPS = 5
# Steps that might need more bytes are not run.
LARGEST = 8e9


def complete(names, path):
    """Measures rows, and writes a JSON file after each."""
    costs = runner.read(path)
    for row in names:
        costs[row] = {}
        for length in LENGTHS:
            costs[row][length] = measured(row, length, costs[row])
            print(row, length, costs[row][length], flush=True)
        costs[row]["machine"] = runner.machine()
        costs[row]["tensorflow"] = tf.__version__
        runner.save(path, costs)


def measured(row, length, shorter):
    """Measures tokens a second and bytes of a training step.

    Speed and memory have separate processes, as giving memory back takes time. Returns
    `None` if the step might need too much memory.
    """
    last = list(shorter.values())[-1] if shorter else {"bytes": 0}
    grows = 16 if row in models.QUADRATIC else 4
    if last is None or grows * last["bytes"] > LARGEST:
        return None
    case = {"row": row, "length": length}
    (seconds,) = runner.results(seconds_of_step, [case], workers=1)
    taken = runner.in_new_process(bytes_of_steps, row, length, start=start)
    return {"tokens_a_second": round(length / seconds), "bytes": taken}


def seconds_of_step(row, length):
    same = task(length)
    return times.of_step(made(same, row), same, STEPS, jit_compile=False)


def start():
    runner.use_one_thread()
    runner.give_back()


def bytes_of_steps(row, length):
    """Returns the rise of the peak after compilation."""
    same = task(length)
    steps = times.of_steps(made(same, row), same, jit_compile=False)

    def train(num_steps):
        return list(itertools.islice(steps, num_steps))

    train(times.FIRST_STEPS)
    before = worker.resident("VmRSS")
    return worker.peak_and_seconds(lambda: train(STEPS), before)[0]


def made(task, row):
    """Makes a model with the feed-forward width of exact attention, for any row.

    Training equalizes parameters instead. Here, an attention with weights for thousands
    of positions would leave almost no feed-forward network, and seem too cheap.
    """
    width = models.WIDTHS * task.hidden_dim
    encoder = models.encoder_of_width(task, row, width, seed=0)
    return models.Reader(encoder, task)


def task(length):
    """Makes a task: one class for random tokens, with the same window at any length."""

    def draw(random, batch_size):
        tokens = random.integers(VOCABULARY_SIZE, size=(batch_size, length))
        ones = np.ones((batch_size, 1))
        return tokens.astype("int32"), 0 * ones.astype("int32"), ones.astype("float32")

    return Task(
        "costs",
        length,
        WINDOW,
        VOCABULARY_SIZE,
        draw=draw,
        held_out=draw,  # nothing is measured
        num_classes=10,
        measure="accuracy",
        hidden_dim=64,
        steps=STEPS,
        batch_size=1,
        learning_rate=1e-3,
    )
