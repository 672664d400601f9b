"""Inputs and weights of the golden test, the same on every machine.

All come from NumPy's `RandomState`, whose stream NumPy promises to keep. The seed of an
array depends on its name, so the numbers of a configuration do not depend on other
configurations, nor on the order in which a layer makes weights.
"""

import contextlib
import zlib

import numpy as np
import tensorflow as tf

_moved = None


def normal(name, shape, std=1.0, dtype="float32"):
    """Returns normal values that depend on `name`."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    values = (std * random.standard_normal(shape)).astype(dtype)
    if _moved is None:
        return values
    towards = _moved.choice([-np.inf, np.inf], size=shape).astype(dtype)
    return np.nextafter(values, towards)


@contextlib.contextmanager
def moved_by_rounding(seed):
    """Moves all normal values by one unit in the last place, up or down.

    Results then move as far as rounding moves them, which is far if large terms cancel.
    """
    global _moved
    _moved = np.random.RandomState(seed)
    try:
        yield
    finally:
        _moved = None


def ids(name, shape, count):
    """Returns random ints from 0 to `count - 1` that depend on `name`."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return random.randint(count, size=shape).astype("int32")


def projection(name, shape, hyperbolic=False):
    """Returns random features; hyperbolic ones come in pairs w and -w."""
    matrix, half = normal(name, shape), shape[0] // 2
    if hyperbolic:
        matrix[half:] = -matrix[:half]
    return matrix


def set_weights(model, projections=True):
    """Gives every weight of a layer or model values that depend on its path.

    Args:
        model: a built layer or model.
        projections: bool, also replace the random features. Sampling them takes
            logarithms, cosines and a QR decomposition, which machines round
            differently.
    """
    for weight in model.weights:
        *_, leaf = path = weight.path.split("/")[1:]
        name, shape = "/".join(path), tuple(weight.shape)
        if leaf in ("projection_seed", "redraw_count"):
            continue
        if leaf == "projection_matrix":
            if projections:
                drawn, half = np.asarray(weight), shape[0] // 2
                hyperbolic = np.array_equal(drawn[half:], -drawn[:half])
                weight.assign(projection(name, shape, hyperbolic))
        elif leaf in ("bias", "beta"):
            weight.assign(normal(name, shape, 0.3))
        elif leaf == "gamma":
            weight.assign(1 + normal(name, shape, 0.2))
        elif leaf == "kernel":
            weight.assign(normal(name, shape, shape[0] ** -0.5))
        else:  # tables of embeddings
            weight.assign(normal(name, shape, 0.7))


def state_arrays(state):
    """Returns the running maxima and the sums of a state, in the order of layers.

    They are the only tensors of a state with three or more axes.
    """
    return [x for x in tf.nest.flatten(state) if len(x.shape) >= 3]
