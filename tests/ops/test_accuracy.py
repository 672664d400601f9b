"""Softmax feature maps come close to exact softmax attention at length 4096.

Relative Frobenius error of the output, float32 against exact softmax in float64, mean
of 2 draws of inputs and projection, 256 features; q, k ~ N(0, 0.25), V ~ N(0, 1).
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import favor_plus_kernel, float64, relative_error, softmax_kernel

LENGTH, HEAD_DIM, STD, NUM_FEATURES, NUM_DRAWS = 4096, 16, 0.5, 256, 2


@pytest.mark.slow
def test_error_against_exact_softmax():
    errors = {softmax_kernel: [], favor_plus_kernel: []}
    for seed in range(NUM_DRAWS):
        random = np.random.default_rng((HEAD_DIM, seed))
        query, key, value = random.standard_normal((3, 1, LENGTH, 1, HEAD_DIM))
        inputs = [tf.constant(x, "float32") for x in (STD * query, STD * key, value)]
        exact = reference.exact_softmax_attention(*float64(*inputs))
        # what the average of all values leaves
        mean = np.broadcast_to(value.mean(1, keepdims=True), value.shape)
        assert 0.2 < relative_error(mean, exact) < 0.3
        for make, found in errors.items():
            output = ops.bidirectional_attention(
                *inputs, make(NUM_FEATURES, HEAD_DIM, seed)
            )
            found.append(relative_error(output, exact))
    for found, bound in zip(errors.values(), (0.075, 0.21)):
        assert 0.5 * bound < np.mean(found) < bound
