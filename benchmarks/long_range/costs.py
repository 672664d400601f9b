"""What a training step of the small models costs: tokens a second, and memory."""

import dataclasses
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import alone, machine, worker
from benchmarks.learning import pool
from benchmarks.learning.training import step_of
from benchmarks.long_range import models, rows, tasks, times

LENGTHS = 1024, 4096, 16384
WINDOW = 64
VOCABULARY_SIZE, NUM_CLASSES = 256, 10
# Those that compile, and those that are timed.
FIRST_STEPS, STEPS = 2, 5
# What might need more is not tried.
LARGEST = 8e9


def complete(names, path):
    """Measures rows, and writes them to a file of JSON after each; returns them all.

    Args:
        names: of rows; those that the file has are measured again.
        path: of the file.
    """
    costs = times.read(path)
    for row in names:
        costs[row] = {}
        for length in LENGTHS:
            costs[row][length] = measured_alone(row, length, costs[row])
            print(row, length, costs[row][length], flush=True)
        costs[row]["machine"] = machine.name()
        costs[row]["tensorflow"] = tf.__version__
        path.write_text(json.dumps(costs, indent=1) + "\n")
    return costs


def measured_alone(row, length, shorter):
    """`measured`, in a process of its own; `None` if it would need too much memory."""
    last = list(shorter.values())[-1] if shorter else {"bytes": 0}
    grows = 16 if row in rows.QUADRATIC else 4
    if last is None or grows * last["bytes"] > LARGEST:
        return None
    return alone.call(measured, row, length, initializer=pool.use_one_thread)


def measured(row, length):
    """Tokens a second of a training step, and the bytes that it takes meanwhile.

    One sequence, compiled as `fit` does, on one thread. Bytes are those of the process
    at its peak above what it had when all was compiled.
    """
    task = tasks.task(
        "costs",
        (None, None),
        length,
        VOCABULARY_SIZE,
        NUM_CLASSES,
        steps=FIRST_STEPS + STEPS,
        batch_size=1,
        hidden_dim=64,
        learning_rate=1e-3,
    )
    task = dataclasses.replace(task, window=WINDOW)  # at every length
    encoder = models.make_encoder(task, row, seed=0)
    step = step_of(models.Classifier(encoder, False, NUM_CLASSES), 1e-3, True)
    random = np.random.default_rng(0)
    batch = [
        tf.constant(random.integers(VOCABULARY_SIZE, size=(1, length)), tf.int32),
        tf.zeros((1, 1), tf.int32),
        tf.ones((1, 1)),
    ]

    def seconds_of(index):
        start = time.process_time()
        float(step(index, *batch))
        return time.process_time() - start

    steps = range(1, FIRST_STEPS + STEPS + 1)
    for index in steps[:FIRST_STEPS]:
        seconds_of(index)
    before = worker.resident("VmRSS")
    worker.forget_peak()
    seconds = [seconds_of(index) for index in steps[FIRST_STEPS:]]
    return {
        "tokens_a_second": round(length / statistics.median(seconds)),
        "bytes": worker.resident("VmHWM") - before,
    }
