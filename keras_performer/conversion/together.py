"""Whether fitted layers help the model, and how much far weights of all are to count.

A layer that comes nearer to exact attention need not bring the model nearer: errors of
layers add up, and some count more than others. So its output is asked.
"""

import typing

import keras
import numpy as np

from keras_performer.conversion.fitting import BETTER
from keras_performer.layers.far_gain import SPEED

# What is added to the logarithms of far weights of all layers at once. With the last
# the window alone is left.
CHANGES = 0.0, 1.0, -1.0, -2.0, -4.0, -8.0


class Together(typing.NamedTuple):
    """What was chosen.

    Attributes:
        before, after: floats, relative errors of the outputs of the first model, and of
            that which was chosen.
        index: int, which model was chosen.
        change: float, what was added to the log-gains of its layers.
    """

    before: float
    after: float
    index: int
    change: float


def choose(exact, models, batches):
    """Finds which model is nearest to the exact one, with which gains, and sets these.

    Args:
        exact: the model with exact attention.
        models: list of models, each with a list of its layers whose gains may change.
        batches: list of inputs.

    Returns:
        `Together`.
    """
    wanted = [_outputs(exact, batch) for batch in batches]

    def error(model):
        sums = np.zeros(2)
        for batch, expected in zip(batches, wanted, strict=True):
            for x, y in zip(_outputs(model, batch), expected, strict=True):
                sums += np.sum((x - y) ** 2), np.sum(y**2)
        return float(np.sqrt(sums[0] / sums[1])) if sums[1] else 0.0

    best = None
    for index, (model, layers) in enumerate(models):
        layers = [layer for layer in layers if layer.log_gain is not None]
        gains = [layer.log_gain.numpy() for layer in layers]
        for change in CHANGES if layers else (0.0,):
            _set(layers, gains, change)
            found = error(model)
            if best is None:
                best = Together(found, found, index, change)
            # noise changes nothing
            elif found < BETTER * best.after:
                best = Together(best.before, found, index, change)
        _set(layers, gains, best.change if best.index == index else 0.0)
    return best


def _set(layers, gains, change):
    for layer, gain in zip(layers, gains, strict=True):
        layer.log_gain.assign(gain + change / SPEED)


def _outputs(model, batch):
    """The floats of what a model returns, float64 arrays."""
    outputs = keras.tree.flatten(model(batch, training=False))
    return [
        np.asarray(x, np.float64)
        for x in outputs
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
    ]
