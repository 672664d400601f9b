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


def sum_of_products(x, y):
    """The sum over all features of products, `(..., 1)`."""
    products = each(lambda x, y: tf.reduce_sum(x * y, -1, keepdims=True), x, y)
    return functools.reduce(tf.add, products)
