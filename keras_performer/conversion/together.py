"""How much far weights of all fitted layers count: what the output of the model says.

A layer that comes nearer to exact attention need not bring the model nearer: errors of
layers add up, and some count more than others.
"""

import typing

import keras
import numpy as np

from keras_performer.conversion import places
from keras_performer.conversion.fitting import BETTER
from keras_performer.layers.far_gain import SPEED

# What is added to the logarithms of far weights of all layers at once. With the last
# the window alone is left.
CHANGES = 0.0, -1.0, -2.0, -4.0, -8.0


class Together(typing.NamedTuple):
    """What was chosen for all layers.

    Attributes:
        before, after: floats, relative errors of the outputs of the model as it was,
            and of what was chosen.
        change: float, what was added to the log-gains of the fitted model; `None` if
            the model as it was is nearer.
    """

    before: float
    after: float
    change: float | None


def choose(model, exact, fitted, layers, batches):
    """Moves the gains of a fitted model to where it is nearest to the exact one.

    Args:
        model: the model as it was.
        exact: the same with exact attention.
        fitted: a copy of the model in which some layers are fitted.
        layers: these layers of the model.
        batches: list of inputs.

    Returns:
        `Together`.
    """
    wanted = [_outputs(exact, batch) for batch in batches]
    pairs = places.pairs(model, fitted, leaves=layers)
    gains = {
        copy: copy.log_gain.numpy()
        for layer, copy in pairs
        if layer in layers and copy.log_gain is not None
    }

    def error(one):
        sums = np.zeros(2)
        for batch, expected in zip(batches, wanted, strict=True):
            for x, y in zip(_outputs(one, batch), expected, strict=True):
                sums += np.sum((x - y) ** 2), np.sum(y**2)
        return float(np.sqrt(sums[0] / sums[1])) if sums[1] else 0.0

    def change_gains(change):
        for layer, gain in gains.items():
            layer.log_gain.assign(gain + change / SPEED)

    before, best = error(model), None
    found = {None: before}
    for change in CHANGES if gains else (0.0,):
        change_gains(change)
        found[change] = error(fitted)
        # noise changes nothing
        if found[change] < BETTER * found[best]:
            best = change
    change_gains(best or 0.0)
    return Together(before, found[best], best)


def _outputs(model, batch):
    """The floats of what a model returns, float64 arrays."""
    outputs = keras.tree.flatten(model(batch, training=False))
    return [
        np.asarray(x, np.float64)
        for x in outputs
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
    ]
