"""Times a converted model on long sequences, and measures its memory.

    python -m benchmarks.conversion.speed

Predicts the next byte at all positions of one sequence, each time in a new process. The
model is the case "bytes", untrained and made for the length, with exact attention and
with each replacement. Prints tokens a second (the median of several predictions after a
first one) and the increase of the peak of resident memory.
"""

import dataclasses
import datetime
import statistics

import keras
import numpy as np
import tensorflow as tf

from benchmarks import runner, worker
from benchmarks.conversion.small import CASES, SEED
from benchmarks.learning import models
from benchmarks.tables import table

ROWS = models.EXACT, models.WINDOW, "window + softmax", "window + taylor"
TIMES = 3
# A logit of exact attention and its softmax, float32.
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
    """Returns the entry of the table for a row at a length."""
    case = CASES["bytes"]
    num_heads = case.task.hidden_dim // case.key_dim
    needed = BYTES_OF_A_PAIR * num_heads * length**2
    if row == models.EXACT and needed > runner.memory_bytes():
        return f"needs {needed / 2**30:.0f} GB"
    plain = runner.with_plain_memory
    seconds, peak = runner.in_new_process(prediction, row, length, start=plain)
    return f"{length / seconds:,.0f}, {peak / 2**20:,.0f} MB"


def prediction(row, length):
    """Returns the seconds of a prediction, and the bytes by which the peak rises."""
    case = CASES["bytes"]
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
