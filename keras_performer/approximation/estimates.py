"""Attention of some queries to some keys, by the weight of every key.

For a few queries that is as cheap as the loops, which are linear in the length; and the
parts of near and far keys serve all gains.
"""

import tensorflow as tf

from keras_performer.approximation.exact_rows import over_values
from keras_performer.ops.kernels.base import EMPTY


def mean_by_logits(logits, value, seen):
    """Exact attention to some keys.

    Args:
        logits: tensor `(B, N, rows, S)`.
        value: as in `ExactRows`.
        seen: bool tensor `(B, N, rows, S)`, which keys.

    Returns:
        `(output, log_sums)` as `ops.join_parts` takes them, `(B, N, rows, V)` and
        `(B, N, rows, 1)`: the mean of the values, and the logarithm of the sum of the
        weights.
    """
    logits = tf.where(seen, logits, EMPTY)
    log_scale = tf.reduce_max(logits, -1, keepdims=True)
    return mean_by_weights(tf.exp(logits - log_scale), log_scale, value, seen)


def mean_by_weights(weights, log_scale, value, seen):
    """The same by the weights of a kernel.

    Args:
        weights, log_scale: of `pair_weights`.
        value, seen: as in `mean_by_logits`.
    """
    weights = tf.where(seen, weights, tf.zeros_like(weights))
    sums = tf.reduce_sum(weights, -1, keepdims=True)
    some = sums != 0
    sums = tf.where(some, sums, tf.ones_like(sums))
    log_sums = tf.where(some, log_scale + tf.math.log(tf.abs(sums)), EMPTY)
    return over_values(weights, value) / sums, log_sums


def squares_of_joined(near, far, exact):
    """How far two parts under one normalizer are from what is exact, by their ratio.

    Args:
        near, far: `(output, log_sums)`, as `mean_by_logits` returns them.
        exact: tensor `(B, N, rows, V)`, what the whole ought to be.

    Returns:
        A function of what is added to the log-sums of the far part, `(N, 1, 1)`: the
        squared differences of each row, `(B, N, rows)`.
    """
    a, b = near[0] - exact, far[0] - exact
    products = [tf.reduce_sum(x * y, -1) for x, y in ((a, a), (a, b), (b, b))]

    def squares(log_gains):
        share = tf.sigmoid(far[1] + log_gains - near[1])[..., 0]
        of_near, of_both, of_far = products
        found = (
            (1 - share) ** 2 * of_near
            + 2 * share * (1 - share) * of_both
            + share**2 * of_far
        )
        return tf.maximum(found, 0.0)  # rounding may leave less

    return squares
