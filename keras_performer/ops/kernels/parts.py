"""Features in parts, equal shares of the M features that the loops do not join.

A hyperbolic kernel has two parts, exp(u) and exp(-u) of one product u; others have one.
So everything with an axis of features is a tuple of tensors `(X, rows, M / num_parts)`.
Joining the parts of a block would take as much time as the product u.
"""

import functools

import tensorflow as tf


def each(function, *parts):
    """Applies the function to each part, or to corresponding parts of arguments."""
    return tuple(function(*x) for x in zip(*parts, strict=True))


def split(x, num_parts):
    """Splits `(..., M)` into its parts."""
    return (x,) if num_parts == 1 else tuple(tf.split(x, num_parts, -1))


def join(parts):
    """The inverse of `split`."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def over_features(x, y):
    """Computes `x @ y^T`: sums products over the features of all parts."""
    products = each(lambda x, y: tf.matmul(x, y, transpose_b=True), x, y)
    return functools.reduce(tf.add, products)


def over_rows(x, y):
    """Computes `x^T @ y`, sums over rows, for each part of y."""
    return each(lambda y: tf.matmul(x, y, transpose_a=True), y)


def per_feature(x, y):
    """Computes `x @ y` for each part of y."""
    return each(lambda y: tf.matmul(x, y), y)


def sum_of_products(x, y):
    """Sums `x * y` over the features of all parts, `(..., 1)`."""
    products = each(lambda x, y: tf.reduce_sum(x * y, -1, keepdims=True), x, y)
    return functools.reduce(tf.add, products)
