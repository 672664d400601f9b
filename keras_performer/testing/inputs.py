"""Random inputs of any model, and copies of inputs that differ at some tokens."""

import keras
import numpy as np

from keras_performer.layers import keras_privates

# Sizes for axes that a model leaves open; hardly any other axis has size 13.
BATCH, LENGTH, OTHER_SIZES = 2, 13, 5
# Factor of changed values, to find leaks through a maximum; not for arrays of whole
# numbers, which may be ids.
FACTOR = -8


def random_inputs(model, random, num_padded=0):
    """Returns random arrays for `model.inputs`; the last `num_padded` tokens are 0."""
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
            # no 0, which may be padding, unless fewer than two ids are left to sample
            x = random.integers(int(most > 2), max(most, 2), shape).astype(dtype)
        if x.ndim > 1:
            x[:, shape[1] - num_padded :] = 0
        return x

    in_a_line = isinstance(model, keras.Sequential)
    wanted = model.inputs[0] if in_a_line else model.input
    return keras.tree.map_structure(drawn, wanted)


def batch_and_length(inputs):
    """Returns B and T of the first array."""
    shape = np.shape(keras.tree.flatten(inputs)[0])
    if len(shape) < 2:
        raise ValueError(
            "The first array of inputs must have shape (B, T, ...). Received: shape "
            f"{shape}"
        )
    return shape[:2]


def changed(inputs, where, random, but=None):
    """Returns inputs with other values at tokens `where`, `(B, T)`.

    The values are sampled from the same array. Arrays of other shapes stay, and so do
    the mask `but`, `(B, T)`, and its opposite, with or without further axes of size 1.
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
