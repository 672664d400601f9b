"""Choice for all fitted layers together: if they harm a model, and far gains.

A layer that comes nearer to exact attention need not bring the model nearer: errors of
layers add up, and some count more than others. So its output is asked, and heeded where
it speaks clearly: what counts of an output only its user knows.
"""

import typing

import keras
import numpy as np

from keras_performer.ops.shapes import ceil_div

# What is added to the logarithms of far weights of all layers at once; the further ones
# are tried if -1 is the best of the first. The last leaves local attention.
CHANGES, FURTHER_CHANGES = (0.0, 1.0, -1.0), (-2.0, -4.0, -8.0)
# Something else than the fitted model is chosen if it leaves less than this part of the
# error of its output.
CLEARLY = 0.95
# How many sequences the model is asked about: each costs a pass for every change.
NUM_SEQUENCES = 4
# The name of the model as it was: not fitted, its gains not changed.
NOT_FITTED = False, 0.0


class JointChoice(typing.NamedTuple):
    """The choice.

    Attributes:
        before, after: floats, relative errors of the outputs of the model as it was,
            and of that which was chosen.
        fitted: bool, whether the fitted model was chosen.
        change: float, what was added to the log-gains of its fitted layers.
    """

    before: float
    after: float
    fitted: bool
    change: float


def choose(exact, as_it_was, fitted, layers, batches):
    """Finds which model is nearest to the exact one, and sets gains of the fitted one.

    Args:
        exact: the model with exact attention.
        as_it_was, fitted: models.
        layers: list of the layers of the fitted model whose gains may change.
        batches: list of inputs, of which at most `NUM_SEQUENCES` sequences are asked
            about, or one of each.

    Returns:
        `JointChoice`.
    """
    layers = [layer for layer in layers if layer.log_gain is not None]
    gains = [layer.log_gain.numpy() for layer in layers]

    def change_gains(change):
        for layer, gain in zip(layers, gains, strict=True):
            layer.assign_log_gain(gain + change)

    def outputs_with(name, batch):
        fits, change = name
        change_gains(change)
        return _outputs(fitted if fits else as_it_was, batch)

    changes = CHANGES if layers else (0.0,)
    names = [NOT_FITTED, *((True, change) for change in changes)]
    errors = _errors(exact, batches, outputs_with, names)
    best = min(errors, key=errors.get)
    if best == (True, min(changes)) and layers:
        names = [(True, change) for change in FURTHER_CHANGES]
        errors |= _errors(exact, batches, outputs_with, names)
        best = min(errors, key=errors.get)
    if errors[best] > CLEARLY * errors[True, 0.0]:
        best = True, 0.0
    change_gains(best[1])
    return JointChoice(errors[NOT_FITTED], errors[best], *best)


def _errors(exact, batches, outputs_with, names):
    """Relative errors of outputs by the names of what gives them.

    Args:
        exact, batches: as in `choose`.
        outputs_with: function of a name and a batch that returns `_outputs`.
        names: list.
    """
    of_each = max(NUM_SEQUENCES // len(batches), 1)
    of_exact, squares = 0.0, dict.fromkeys(names, 0.0)
    for batch in batches:  # outputs may be large: of one batch at a time
        batch = _some(batch, of_each)
        wanted = _outputs(exact, batch)
        of_exact += _sum_of_squares(wanted)
        for name in names:
            found = outputs_with(name, batch)
            differences = (x - y for x, y in zip(found, wanted, strict=True))
            squares[name] += _sum_of_squares(differences)
    # where an estimate overflows it is not the best
    return {
        name: float(np.sqrt(np.nan_to_num(found / of_exact, nan=np.inf)))
        if of_exact
        else 0.0
        for name, found in squares.items()
    }


def _some(batch, number):
    """At most so many of the sequences of a batch, from its first to its last."""

    def of_array(x):
        return x[:: ceil_div(len(x), number)]

    return keras.tree.map_structure(of_array, batch)


def _outputs(model, batch):
    """The floats of what a model returns, float32 arrays."""
    outputs = keras.tree.flatten(model(batch, training=False))
    return [
        np.asarray(x, np.float32)
        for x in outputs
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
    ]


def _sum_of_squares(arrays):
    return sum(np.sum(np.square(x), dtype=np.float64) for x in arrays)
