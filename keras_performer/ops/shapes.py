"""Types and sizes of tensors whose shape may be known only when a graph runs."""

import typing

import numpy as np
import tensorflow as tf

# All that `tf.convert_to_tensor` takes: a tensor, an array, nested lists of numbers.
TensorLike: typing.TypeAlias = tf.types.experimental.TensorLike


def size(x, axis):
    """Returns the length of an axis: an int if static, otherwise a scalar tensor."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def sizes(x):
    """Returns the `size` of each axis."""
    return [size(x, axis) for axis in range(len(x.shape))]


def positions(count):
    """Returns 0 to count - 1; if static as an array, which takes no operations."""
    if isinstance(count, int):
        return np.arange(count, dtype="int32")
    return tf.range(count)


def pad(x, paddings):
    """Pads with zeros; LiteRT of TensorFlow 2.19 cannot pad bools with `tf.pad`."""
    if x.dtype != tf.bool:
        return tf.pad(x, paddings)
    return tf.cast(tf.pad(tf.cast(x, tf.int32), paddings), tf.bool)


def masked(x, mask):
    """Returns x, with 0 where a mask is false; `None` hides nothing."""
    return x if mask is None else tf.where(mask, x, 0.0)


def slice_of(x, start, length):
    """Returns `x[:, start : start + length]`, of static length for a tensor `start`."""
    first, _, *rest = sizes(x)
    # a vector of zeros except for the start
    begin = start * np.eye(1, len(x.shape), 1, dtype="int32")[0]
    return tf.slice(x, begin, [first, length, *rest])


def repeat(x, repeats, axis):
    """Repeats a nonempty tensor by an int; `tf.repeat` would take 28 operations."""
    if repeats == 1:
        return x
    shape = list(x.shape)
    first = shape.index(None) if None in shape else None
    shape = [-1 if i == first else size(x, i) for i in range(len(shape))]
    if axis != first:
        shape[axis] *= repeats
    times = [1] * (len(shape) + 1)
    times[axis + 1] = repeats
    return tf.reshape(tf.tile(tf.expand_dims(x, axis + 1), times), shape)


def to_chunks(x, chunks):
    """Cuts `(X, rows, dim)` into chunks `(X, chunks, rows of a chunk, dim)`."""
    return tf.reshape(x, (-1, chunks, size(x, 1) // chunks, size(x, 2)))


def from_chunks(x):
    """Inverts `to_chunks`."""
    return tf.reshape(x, (-1, size(x, 1) * size(x, 2), size(x, 3)))


def ceil_div(a, b):
    return -(-a // b)


def compute_dtype(*tensors):
    """Returns the dtype of sums over a sequence: float64 if an input is, or float32."""
    return tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32


def sum_dtype(dtype):
    """Returns the `compute_dtype` for a dtype or its name."""
    return tf.float64 if dtype == "float64" else tf.float32
