"""Weights of pairs beside the sums over features in the slow twins."""

import numpy as np
import pytest

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.pair_weights import pair_weights

from .cases import HEAD_DIM, KERNELS, normal, qkv


@pytest.mark.parametrize(
    "kernel",
    [
        *(KERNELS[name]() for name in ("favor+", "softmax", "log_weights", "taylor")),
        ops.ExponentialKernel(normal((3, 10, HEAD_DIM), 3)),  # a matrix of each head
    ],
)
def test_weights_are_those_of_the_features(kernel):
    query, key, _ = qkv(2, 5, 7, heads=3, groups=2, std=5.0)
    weights, log_scale = pair_weights(query, key, kernel)
    factors, logs, _ = reference.pair_weights(query, key, kernel)
    expected = np.log(factors) + logs
    np.testing.assert_allclose(np.log(weights) + log_scale, expected, atol=1e-10)
