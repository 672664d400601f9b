"""Inputs and weights of the golden test, the same on every machine.

All come from NumPy's `RandomState`, whose stream NumPy promises to keep. The seed of an
array depends on its name, so the numbers of a configuration do not depend on other
configurations, nor on the order in which a layer makes weights.
"""

import zlib

import numpy as np


def normal(name, shape, std=1.0):
    """Returns normal values that depend on `name`."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return (std * random.standard_normal(shape)).astype("float32")


def ids(name, shape, count):
    """Returns random ints from 0 to `count - 1` that depend on `name`."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return random.randint(count, size=shape).astype("int32")


def set_weights(model):
    """Gives every weight of a layer or model values that depend on its path.

    Random features, their seeds and counts of redraws stay.
    """
    for weight in model.weights:
        *_, leaf = path = weight.path.split("/")[1:]
        name, shape = "/".join(path), tuple(weight.shape)
        if leaf in ("projection_matrix", "projection_seed", "redraw_count"):
            continue
        if leaf in ("bias", "beta"):
            weight.assign(normal(name, shape, 0.3))
        elif leaf == "gamma":
            weight.assign(1 + normal(name, shape, 0.2))
        elif leaf == "kernel":
            weight.assign(normal(name, shape, shape[0] ** -0.5))
        else:  # tables of embeddings
            weight.assign(normal(name, shape, 0.7))
