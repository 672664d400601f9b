"""Whether fitted layers harm the model, and how much far weights of all are to count.

A layer that comes nearer to exact attention need not bring the model nearer: errors of
layers add up, and some count more than others. So its output is asked, and heeded where
it speaks clearly: what counts of an output only its user knows.
"""

import typing

import keras
import numpy as np

from keras_performer.layers.far_gain import SPEED

# What is added to the logarithms of far weights of all layers at once. With the last
# the window alone is left.
CHANGES = 0.0, 1.0, -1.0, -2.0, -4.0, -8.0
# Something else than the fitted model is chosen if it leaves less than this part of the
# error of its output.
CLEARLY = 0.95


class Together(typing.NamedTuple):
    """What was chosen.

    Attributes:
        before, after: floats, relative errors of the outputs of the model as it was,
            and of that which was chosen.
        fitted: bool, whether the fitted model was chosen.
        change: float, what was added to the log-gains of its layers.
    """

    before: float
    after: float
    fitted: bool
    change: float


def choose(exact, as_it_was, fitted, batches):
    """Finds which model is nearest to the exact one, with which gains, and sets these.

    Args:
        exact: the model with exact attention.
        as_it_was, fitted: pairs of a model and a list of its layers whose gains may
            change.
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

    errors, gains = {}, {}
    models = {False: as_it_was, True: fitted}
    for name, (model, layers) in models.items():
        gains[name] = [layer.log_gain.numpy() for layer in _with_gains(layers)]
        for change in CHANGES if gains[name] else (0.0,):
            _set(layers, gains[name], change)
            errors[name, change] = error(model)
        _set(layers, gains[name], 0.0)
    best = min(errors, key=errors.get)
    if errors[best] > CLEARLY * errors[True, 0.0]:
        best = True, 0.0
    name, change = best
    _set(models[name][1], gains[name], change)
    return Together(errors[False, 0.0], errors[best], *best)


def _with_gains(layers):
    return [layer for layer in layers if layer.log_gain is not None]


def _set(layers, gains, change):
    for layer, gain in zip(_with_gains(layers), gains, strict=True):
        layer.log_gain.assign(gain + change / SPEED)


def _outputs(model, batch):
    """The floats of what a model returns, float64 arrays."""
    outputs = keras.tree.flatten(model(batch, training=False))
    return [
        np.asarray(x, np.float64)
        for x in outputs
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
    ]
