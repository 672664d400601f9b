"""Weights that a kernel gives to all pairs of a few queries and keys."""

import tensorflow as tf

from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY


def pair_weights(query, key, kernel):
    """Computes the weight `phi(q) . phi(k)` of every pair, in quadratic memory.

    Query and key are `(B, T, N, H)` and `(B, S, K, H)`. Returns the weights divided by
    exp(log_scale), `(B, N, T, S)`, and log_scale, `(B, N, T, 1)`; float32, or float64
    for float64 inputs.
    """
    heads = Heads(query, key, key)
    kernel = kernel.astype(heads.dtype)
    x = heads.query_rows(query[:, tf.newaxis], 0)
    y = heads.key_rows(key[:, tf.newaxis], 0)
    b = kernel.project_keys(y, None)
    shape = tf.shape(y)[0], 1, kernel.num_features(key.shape[3])
    nothing = tf.fill(shape, tf.constant(EMPTY, heads.dtype))
    r = kernel.running_max(nothing, b)
    features, log_scale = kernel.query_features(kernel.project_queries(x), r)
    weights = tf.matmul(features, kernel.key_features(b, r, None), transpose_b=True)
    found = weights, log_scale + kernel.log_left_out(x)
    weights, log_scale = (
        tf.transpose(heads.query_block(z), (0, 2, 1, 3)) for z in found
    )
    return weights, log_scale
