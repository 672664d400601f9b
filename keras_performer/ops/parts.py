"""Features in parts, equal shares of the M features that the loops do not join.

Two parts if the kernel is hyperbolic, exp(u) and exp(-u) of one product u, else one.
So everything with an axis of features is a tuple of tensors `(X, rows, M / num_parts)`.
Joining the features of a block would cost as much time as the product that they share.
"""

import functools

import tensorflow as tf


def each(function, *parts):
    """The function of each part; of several, of parts that belong together."""
    return tuple(function(*x) for x in zip(*parts, strict=True))


def split(x, num_parts):
    """`(..., M)` to its parts."""
    return (x,) if num_parts == 1 else tuple(tf.split(x, num_parts, -1))


def join(parts):
    """The inverse of `split`."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def over_features(x, y):
    """`x @ y^T`: the sum of products over all features, of all parts."""
    products = each(lambda x, y: tf.matmul(x, y, transpose_b=True), x, y)
    return functools.reduce(tf.add, products)


def over_rows(x, y):
    """`x^T @ y`: the sum over rows, in the parts of y."""
    return each(lambda y: tf.matmul(x, y, transpose_a=True), y)


def per_feature(x, y):
    """`x @ y`, in the parts of y."""
    return each(lambda y: tf.matmul(x, y), y)


def absorb(kernel, b, v, r, sums, mask):
    """The gauge, and the sums, after a block of further keys.

    Args:
        kernel: an `ExponentialKernel` or `ActivationKernel`.
        b: log-features of the keys, parts `(X, tokens, M / num_parts)`.
        v: their values with a column of ones, `(X, tokens, V + 1)`.
        r: running maximum before them, parts `(X, 1, M / num_parts)`.
        sums: sums before them, parts `(X, V + 1, M / num_parts)`.
        mask: bool tensor `(X, tokens, 1)`, true for visible keys, or `None`.
    """
    r_new = each(tf.stop_gradient, kernel.running_max(r, b))
    added = over_rows(v, kernel.key_features(b, r_new, mask))
    sums = each(tf.multiply, sums, kernel.rescale(r, r_new))
    return r_new, each(tf.add, sums, added)
