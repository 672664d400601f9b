"""Random projection matrices, pure functions of a stateless seed."""

import math

import tensorflow as tf

from keras_performer.ops.shapes import TensorLike, ceil_div


def gaussian_matrix(
    num_rows: int, num_cols: int, seed: TensorLike, regularized: bool = False
) -> tf.Tensor:
    """Samples independent Gaussian rows.

    Args:
        num_rows: int M, the number of random features.
        num_cols: int H, the size of one attention head.
        seed: int32 tensor of shape `(2,)`; equal seeds give equal matrices on every
            replica.
        regularized: bool, rescale every row to length sqrt(H) (the SMREG kernel of
            section 2.3) instead of the chi(H) lengths of the softmax kernel. Defaults
            to `False`.

    Returns:
        float32 tensor of shape `(M, H)`.

    Example:

    >>> gaussian_matrix(6, 4, seed=(0, 1)).shape
    TensorShape([6, 4])
    """
    rows = _normal((num_rows, num_cols), _split(seed)[0])
    if regularized:
        return tf.math.l2_normalize(rows, axis=-1) * num_cols**0.5
    return rows


def orthogonal_gaussian_matrix(
    num_rows: int, num_cols: int, seed: TensorLike, regularized: bool = False
) -> tf.Tensor:
    """Samples Gaussian rows that are orthogonal within blocks of `num_cols`.

    The directions of a block are a Haar-distributed orthogonal matrix: the Q of a
    Gaussian matrix, with signs that make the diagonal of R positive. Without these
    signs the estimate of the kernel along (1, ..., 1) would be biased.

    Args:
        num_rows, num_cols, seed: as in `gaussian_matrix`.
        regularized: as in `gaussian_matrix`. Defaults to `False`.

    Returns:
        float32 tensor of shape `(M, H)`; unless `regularized`, each row has the
        marginal law N(0, I_H).

    Reference:
        arXiv 2009.14794, section 2.4 (orthogonal features); Mezzadri 2007,
        arXiv math-ph/0609050 (the sign).

    Example:

    >>> matrix = orthogonal_gaussian_matrix(4, 4, seed=(0, 1), regularized=True)
    >>> products = matrix @ tf.transpose(matrix)
    >>> bool(tf.reduce_all(tf.abs(products - 4 * tf.eye(4)) < 1e-5))
    True
    """
    direction_seed, length_seed = _split(seed)
    num_blocks = ceil_div(num_rows, num_cols)
    gaussian = _normal((num_blocks, num_cols, num_cols), direction_seed)
    q, r = tf.linalg.qr(gaussian)
    haar = q * tf.sign(tf.linalg.diag_part(r))[:, tf.newaxis, :]
    directions = tf.reshape(haar, (-1, num_cols))[:num_rows]
    if regularized:
        return directions * num_cols**0.5
    lengths = tf.norm(_normal((num_rows, num_cols), length_seed), axis=-1)
    return directions * lengths[:, tf.newaxis]


def _split(seed):
    return tf.unstack(tf.random.split(tf.convert_to_tensor(seed, tf.int32), 2))


def _normal(shape, seed):
    """Samples standard normals that are equal eagerly, in a graph and under XLA.

    TensorFlow promises equality for random bits only: its normal transforms differ. So
    this applies the Box-Muller transform to two 24-bit uniforms.
    """
    bits = tf.random.stateless_uniform(
        (2, *shape), seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    bits = tf.bitwise.right_shift(
        tf.bitcast(bits, tf.uint32), tf.constant(8, tf.uint32)
    )
    radius, angle = tf.unstack((tf.cast(bits, tf.float32) + 0.5) * 2.0**-24)
    return tf.sqrt(-2 * tf.math.log(radius)) * tf.cos(2 * math.pi * angle)
