"""Many estimates of one weight exp(x . y), by the features of this package."""

import numpy as np
import tensorflow as tf

from benchmarks.accuracy import estimators, trigonometric
from keras_performer import feature_maps, ops

IID = estimators.FEATURE_MAPS[estimators.POSITIVE_IID]
HYPERBOLIC = feature_maps.SoftmaxFeatures(regularized=False, orthogonal=False)
ORTHOGONAL = estimators.FEATURE_MAPS[estimators.POSITIVE]
REGULARIZED = feature_maps.SoftmaxFeatures(hyperbolic=False)


def positive(feature_map, x, y, m, groups, seed):
    """Estimates of exp(x . y), each by m rows of the projection.

    The rows are drawn at once: blocks of orthogonal ones are independent of each other,
    so that m rows of each of `groups` blocks are so many draws.

    Args:
        feature_map: `SoftmaxFeatures`.
        x, y: arrays of shape `(H,)`.
        m: int, rows that are drawn for an estimate, at most H.
        groups: int.
        seed: pair of ints.

    Returns:
        float64 array of shape `(groups,)`.
    """
    dim = len(x)
    drawn_together = dim if feature_map.orthogonal else m
    parts = 2 if feature_map.hyperbolic else 1
    matrix = feature_map.draw(parts * groups * drawn_together, dim, seed)
    kernel = feature_map.kernel(matrix)
    query, key = (tf.constant(dim**0.25 * z[None, None], tf.float32) for z in (x, y))
    projected = kernel.project_queries(query)
    # plus and minus of a query where there are two parts, as of a key
    queries = [projected, -projected][:parts]
    keys = tf.nest.flatten(kernel.project_keys(key, None))
    logs = [a.numpy().ravel() + b.numpy().ravel() for a, b in zip(queries, keys)]
    # features of a query lack |x|^2 / 2, which cancels in attention
    weights = np.exp(np.array(logs, "float64") - x @ x / 2)
    return weights.reshape(parts, groups, drawn_together)[..., :m].mean((0, 2))


def of_trigonometric(x, y, m, groups, seed):
    """The same by independent rows with a cosine and a sine each."""
    rows = ops.gaussian_matrix(groups * m, len(x), seed).numpy().astype("float64")
    return trigonometric.softmax_kernel(x, y, rows.reshape(groups, m, len(x)))
