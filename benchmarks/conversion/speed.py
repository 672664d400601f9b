"""Times a converted model on long sequences, and measures its memory.

    python -m benchmarks.conversion.speed

Predicts the next byte everywhere in one sequence with the model of the case "bytes",
made for that length and not trained, with exact attention and with that of what it is
converted to, each in a process of its own. Prints tokens a second, the median of
several predictions after a first, and what the peak of resident memory rose by.
"""

import dataclasses
import datetime
import statistics

import keras
import numpy as np
import tensorflow as tf

from benchmarks import runner, worker
from benchmarks.conversion.small import SEED, cases
from benchmarks.learning import models
from benchmarks.tables import table

ROWS = models.EXACT, models.WINDOW, "window + softmax", "window + taylor"
TIMES = 3
# Logits of exact attention and their softmax, float32.
BYTES_OF_A_PAIR = 8


def main(argv=None):
    lengths = runner.options(__doc__, argv, lengths=(2048, 8192, 32768)).lengths
    lines = [[row, *(cell(row, length) for length in lengths)] for row in ROWS]
    print(
        f"{runner.machine()}, TensorFlow {tf.__version__}, Keras {keras.__version__};"
    )
    print(f"written {datetime.date.today()}. Tokens a second, and memory.\n")
    print(table(["attention", *(f"{length:,} tokens" for length in lengths)], lines))


def cell(row, length):
    """Entry of the table for a row at a length."""
    case = cases()["bytes"]
    num_heads = case.task.hidden_dim // case.key_dim
    needed = BYTES_OF_A_PAIR * num_heads * length**2
    if row == models.EXACT and needed > runner.memory_bytes():
        return f"needs {needed / 2**30:.0f} GB"
    plain = runner.with_plain_memory
    seconds, peak = runner.in_new_process(prediction, row, length, start=plain)
    return f"{length / seconds:,.0f}, {peak / 2**20:,.0f} MB"


def prediction(row, length):
    """Seconds of one prediction, and the bytes by which it raises the peak."""
    case = cases()["bytes"]
    task = dataclasses.replace(case.task, length=length)
    model = models.make_model(task, row, case.key_dim, SEED)
    predict = tf.function(lambda x: tf.argmax(model(x), -1), autograph=False)
    tokens = np.random.default_rng(SEED).integers(256, size=(1, length))
    tokens, times = tf.constant(tokens, tf.int32), []
    before = worker.resident("VmRSS")
    predict(tokens)

    def several():
        for _ in range(TIMES):
            times.append(worker.seconds(lambda: predict(tokens).numpy()))

    peak, _ = worker.peak_and_seconds(several, before)
    return statistics.median(times), peak


if __name__ == "__main__":
    main()
