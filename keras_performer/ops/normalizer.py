"""Weighted means from sums: the sum of a column of ones is the normalizer."""

import tensorflow as tf

from keras_performer.ops.shapes import size


def with_ones(x):
    """Appends a column of ones to values; its weighted sum is the normalizer."""
    axes = len(x.shape) - 1
    return tf.pad(x, [[0, 0]] * axes + [[0, 1]], constant_values=1.0)


def normalize(sums):
    """Divides `(..., V + 1)` by its last column; rows of zeros stay zeros."""
    return tf.math.divide_no_nan(*tf.split(sums, [size(sums, -1) - 1, 1], -1))


def with_normalizer_gradient(doutput, output, dlog_sums=None):
    """Returns the gradient of the input of `normalize`, times the normalizer.

    `doutput` is the gradient of the output, `dlog_sums` the gradient of the logarithm
    of the normalizer, `(..., 1)`; `None` if nothing depends on it.
    """
    dnormalizer = -tf.reduce_sum(doutput * output, -1, keepdims=True)
    if dlog_sums is not None:
        dnormalizer += dlog_sums
    return tf.concat([doutput, dnormalizer], -1)


def joined(parts):
    """Joins weighted means over sets of keys to one weighted mean over all keys.

    Each of the parts, and the result, is a pair `(output, log_sums)`: a weighted mean
    of values, `(B, T, N, V)`, and the logarithm of the sum of its weights, `(B, T, N,
    1)`.
    """
    outputs, logs = zip(*parts)
    logs = tf.concat(logs, -1)
    shares = tf.split(tf.nn.softmax(logs), len(outputs), -1)
    output = tf.add_n([x * share for x, share in zip(outputs, shares)])
    return output, tf.reduce_logsumexp(logs, -1, keepdims=True)
