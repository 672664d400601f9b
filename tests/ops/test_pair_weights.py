"""Weights of pairs beside the sums over features in the slow twins."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.pair_weights import pair_weights

B, T, S, N, K, H, M = 2, 5, 7, 6, 3, 4, 10


def normal(shape, seed):
    return tf.random.stateless_normal(shape, seed=(seed, 1), dtype=tf.float64)


MATRIX = normal((M, H), 3)
HALF = normal((M // 2, H), 4)


@pytest.mark.parametrize(
    "kernel",
    [
        ops.ExponentialKernel(MATRIX),
        ops.ExponentialKernel(tf.concat([HALF, -HALF], 0), hyperbolic=True),
        ops.ExponentialKernel(MATRIX, log_weights=normal((M,), 5)),
        ops.TaylorKernel(),
    ],
)
def test_weights_are_those_of_the_features(kernel):
    size = 5.0
    query, key = size * normal((B, T, N, H), 1), size * normal((B, S, K, H), 2)
    weights, log_scale = pair_weights(query, key, kernel)
    keys = tf.repeat(key, N // K, axis=2)
    if isinstance(kernel, ops.TaylorKernel):
        features = (reference.activation_features(x, kernel) for x in (query, keys))
        expected = np.log(np.einsum("btnm,bsnm->bnts", *features))
    else:
        expected = reference.log_kernel(query, keys, kernel)
    np.testing.assert_allclose(np.log(weights) + log_scale, expected, atol=1e-10)


def test_each_key_head_has_its_own_matrix():
    matrices = normal((K, M, H), 3)
    query, key = normal((B, T, N, H), 1), normal((B, S, K, H), 2)
    kernel = ops.ExponentialKernel(matrices)
    weights, log_scale = pair_weights(query, key, kernel)
    of_second = pair_weights(
        query[:, :, 2:4], key[:, :, 1:2], ops.ExponentialKernel(matrices[1])
    )
    np.testing.assert_allclose(
        (np.log(weights) + log_scale)[:, 2:4],
        np.log(of_second[0]) + of_second[1],
        atol=1e-10,
    )
