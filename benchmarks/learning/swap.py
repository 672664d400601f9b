"""What a trained exact model loses when its attention is exchanged untrained."""

import statistics

import numpy as np

from benchmarks.learning import models, rows
from benchmarks.learning.measuring import measuring
from keras_performer import calibrate

SWAPPED = (
    rows.WINDOW,
    "softmax",
    "taylor",
    "window + softmax",
    "window + taylor",
    "window + softmax, low gain",
    "window + taylor, low gain",
    "window + softmax, calibrated",
    "window + taylor, calibrated",
)
CALIBRATED, NUM_BATCHES = ", calibrated", 6
# Random features are drawn so often for each trained model.
NUM_DRAWS = 2


def bits_lost(model, task, key_dim, seed):
    """Held-out bits lost, by the row whose attention takes the place of the exact.

    Args:
        model: a trained model with exact attention.
        task: its `Task`, measured in bits.
        key_dim: int, size of its heads.
        seed: int, that of the model; each has draws of its own.
    """
    exact = measuring(model, task)()
    lost = {}
    for row in SWAPPED:
        draws = range(NUM_DRAWS if "softmax" in row else 1)
        seeds = [NUM_DRAWS * seed + draw for draw in draws]
        bits = statistics.mean(
            measuring(swapped(model, task, row, key_dim, seed), task)()
            for seed in seeds
        )
        lost[row] = round(bits - exact, 4)
    return lost


def swapped(model, task, row, key_dim, seed):
    """A model with the weights of another, and the attention of a row."""
    row, calibrated, _ = row.partition(CALIBRATED)
    other = models.make_model(task, row, key_dim, seed)
    copy_weights(model, other)
    if not calibrated:
        return other
    random = np.random.default_rng([seed, 9])
    # four sequences at once, of those that are trained on
    batches = (task.draw(random, 4)[0] for _ in range(NUM_BATCHES))
    return calibrate(other, batches, max_batches=NUM_BATCHES, verbose=0)[0]


def copy_weights(model, other):
    """Gives all weights of a model to one that may also have gains, which stay."""
    weights = [weight for weight in other.trainable_weights if not is_gain(weight)]
    for source, target in zip(model.trainable_weights, weights, strict=True):
        target.assign(source)


def is_gain(weight):
    return weight.name == "log_gain"
