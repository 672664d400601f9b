"""Inputs of any model: random ones, and others that differ where they are to differ."""

import keras
import numpy as np

from keras_performer.layers import keras_privates

# Of inputs whose sizes a model leaves open; 13 is hardly the size of anything else.
BATCH, LENGTH, OTHER_SIZES = 2, 13, 5
# Changed numbers are larger than what they replace, for leaks through a maximum; whole
# ones may be ids.
FACTOR = -8


def random_inputs(model, random, num_padded=0):
    """Random arrays for `model.inputs`, with a number of last tokens that are 0."""
    if not getattr(model, "inputs", None):
        raise ValueError(
            "inputs must be given unless the model is functional or a Sequential whose "
            f"input shape is known. Received: {type(model).__name__} without inputs"
        )
    ids = [
        layer.input_dim
        for layer in keras_privates.all_layers(model)
        if isinstance(layer, keras.layers.Embedding)
    ]

    def drawn(like):
        sizes = BATCH, LENGTH, *[OTHER_SIZES] * len(like.shape[2:])
        shape = [known or size for known, size in zip(like.shape, sizes)]
        dtype = keras.backend.standardize_dtype(like.dtype)
        if "float" in dtype:
            x = random.normal(size=shape).astype(dtype)
        elif dtype == "bool":
            x = np.ones(shape, bool)
        else:
            most = min(ids, default=2)
            # 0 may be what is hidden, but two ids are needed to change one
            x = random.integers(int(most > 2), max(most, 2), shape).astype(dtype)
        if x.ndim > 1:
            x[:, shape[1] - num_padded :] = 0
        return x

    in_a_line = isinstance(model, keras.Sequential)
    wanted = model.inputs[0] if in_a_line else model.input
    return keras.tree.map_structure(drawn, wanted)


def batch_and_length(inputs):
    """B and T, from the first array."""
    shape = np.shape(keras.tree.flatten(inputs)[0])
    if len(shape) < 2:
        raise ValueError(
            "The first array of inputs must be of shape (B, T, ...). Received: shape "
            f"{shape}"
        )
    return shape[:2]


def changed(inputs, where, random, but=None):
    """Other values at tokens `where`, `(B, T)`, drawn from those of the same array.

    Arrays of other shapes stay as they are; `but` is a mask `(B, T)` that stays, too,
    as does its opposite, with further axes of 1 or without.
    """

    def is_kept(x):
        if but is None or x.size != but.size:
            return False
        x = x.reshape(but.shape)
        return np.array_equal(x, but) or np.array_equal(x, ~but)

    def other(x):
        x = np.asarray(x)
        if x.shape[:2] != where.shape or is_kept(x):
            return x
        values = random.choice(x.reshape(-1), x.shape)
        if x.dtype.kind not in "biuSUO" and (x != np.round(x)).any():
            values = FACTOR * values
        return np.where(where.reshape(*where.shape, *[1] * (x.ndim - 2)), values, x)

    return keras.tree.map_structure(other, inputs)
