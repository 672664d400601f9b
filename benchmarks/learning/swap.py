"""What a trained exact model loses when its attention is exchanged untrained."""

import statistics

from benchmarks.learning import models, rows
from benchmarks.learning.measuring import measuring

SWAPPED = (
    rows.WINDOW,
    "softmax",
    "taylor",
    "window + softmax",
    "window + taylor",
    "window + softmax, low gain",
    "window + taylor, low gain",
)
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
        swapped = [models.make_model(task, row, key_dim, seed) for seed in seeds]
        for other in swapped:
            copy_weights(model, other)
        bits = statistics.mean(measuring(other, task)() for other in swapped)
        lost[row] = round(bits - exact, 4)
    return lost


def copy_weights(model, other):
    """Gives all weights of a model to one that may also have gains, which stay."""
    weights = [weight for weight in other.trainable_weights if not is_gain(weight)]
    for source, target in zip(model.trainable_weights, weights, strict=True):
        target.assign(source)


def is_gain(weight):
    return weight.name == "log_gain"
