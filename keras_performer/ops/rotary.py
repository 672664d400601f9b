"""Rotary positions: queries and keys rotated by angles proportional to positions."""

import math

import numpy as np
import tensorflow as tf

from keras_performer.ops.shapes import TensorLike, compute_dtype

# As in RoFormer, section 3.3, in KerasHub's RotaryEmbedding, and in the sinusoidal
# positions of "Attention is all you need".
MAX_WAVELENGTH = 10_000.0
# An int32 position is split into two digits of 10 bits and one of 11. The product of a
# digit and a 13-bit number is exact in float32, which has 24 bits.
_DIGIT = 1024
_NUM_DIGITS = 3
_FINENESS = 2.0**13


def rotary_embedding(x: TensorLike, positions: TensorLike) -> tf.Tensor:
    """Rotates heads of queries or keys by their positions.

    Pairs (x_i, x_(i + H/2)) rotate by the angle `p * 10000 ** (-2i / H)`. Then the
    product of a rotated query and a rotated key depends on their positions only through
    the difference, and norms do not change. The pairs are the same as in KerasHub's
    `RotaryEmbedding`. In a grid each axis rotates an equal part of the head, the first
    axis the first part.

    Angles are correct to 1e-6 for all int32 positions, also in half precision: they are
    computed in float32 (float64 for float64 inputs) from the digits of the position.

    Args:
        x: tensor of shape `(B, T, N, H)`; H is divisible by twice the number of axes.
        positions: int32 tensor of shape `(B, T)`, or `(B, T, axes)` for coordinates in
            a grid. B may be 1 if all sequences have the same positions.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:

    >>> x = tf.constant([[[[1.0, 0.0]], [[1.0, 0.0]]]])
    >>> rotary_embedding(x, [[0, 1]])[0, :, 0].numpy().round(3).tolist()
    [[1.0, 0.0], [0.54, 0.841]]

    Reference:
        Su et al. 2021, RoFormer, arXiv 2104.09864, equation 34 (pairs there are
        neighbours).
    """
    x, positions = tf.convert_to_tensor(x), tf.cast(positions, tf.int32)
    if len(positions.shape) == 2:
        positions = positions[..., tf.newaxis]
    axes, head_size = positions.shape[-1], x.shape[-1]
    if head_size % (2 * axes):
        raise ValueError(
            f"x must have a head size divisible by {2 * axes}, 2 for each axis of "
            f"positions. Received: x of shape {tuple(x.shape)} and positions of shape "
            f"{tuple(positions.shape)}"
        )
    dtype = compute_dtype(x)
    halves = tf.split(tf.cast(x, dtype), 2 * axes, axis=-1)
    rotated = []
    for axis in range(axes):
        first, second = halves[2 * axis : 2 * axis + 2]
        angle = _angles(positions[..., axis], head_size // axes, dtype)
        angle = angle[:, :, tf.newaxis]  # one for all heads
        cos, sin = tf.cos(angle), tf.sin(angle)
        rotated += [first * cos - second * sin, second * cos + first * sin]
    return tf.cast(tf.concat(rotated, axis=-1), x.dtype)


def _angles(positions, size, dtype):
    """Computes angles `(B, T, size / 2)` of positions `(B, T)`, without whole turns.

    In float32, a position of 10^6 times a frequency would be off by 0.01 to 0.06.
    """
    frequencies = MAX_WAVELENGTH ** -(np.arange(0, size, 2) / size)
    turns = frequencies / (2 * math.pi)  # per position, in float64
    coarse, fine, rest = 0.0, 0.0, positions[..., tf.newaxis]
    for power in range(_NUM_DIGITS):
        digit = rest if power == _NUM_DIGITS - 1 else rest % _DIGIT
        rest = rest // _DIGIT
        digit = tf.cast(digit, dtype)
        fraction = turns * _DIGIT**power % 1.0  # turns per unit of this digit
        short = np.floor(fraction * _FINENESS) / _FINENESS
        exact = digit * tf.constant(short, dtype)
        coarse += exact - tf.floor(exact)
        fine += digit * tf.constant(fraction - short, dtype)
    return (coarse - tf.round(coarse) + fine) * (2 * math.pi)
