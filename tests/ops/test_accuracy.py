"""Softmax feature maps come close to exact softmax attention at length 4096.

Relative Frobenius error of the output, float32 against exact softmax in float64, mean
of 2 draws of inputs and projection, 256 features; q, k ~ N(0, 0.25), V ~ N(0, 1).
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

LENGTH, HEAD_DIM, STD, NUM_FEATURES, NUM_DRAWS = 4096, 16, 0.5, 256, 2


def exact_attention(query, key, value, rows=256):
    """Exact softmax attention in float64, a block of rows at a time."""
    output = np.empty_like(value)
    for start in range(0, LENGTH, rows):
        here = slice(start, start + rows)
        scores = query[here] @ key.T / np.sqrt(query.shape[1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        output[here] = weights @ value / weights.sum(axis=1, keepdims=True)
    return output


@functools.cache
def exact_draws():
    """`NUM_DRAWS` times the inputs in float32 and the exact output in float64."""
    draws = []
    for seed in range(NUM_DRAWS):
        rng = np.random.default_rng((HEAD_DIM, seed))
        query, key, value = rng.standard_normal((3, LENGTH, HEAD_DIM))
        inputs = STD * query, STD * key, value
        rounded = [tf.constant(x[None, :, None], "float32") for x in inputs]
        draws.append((rounded, exact_attention(*inputs)))
    return draws


def error(output, exact):
    difference = np.reshape(output, exact.shape) - exact
    return np.linalg.norm(difference) / np.linalg.norm(exact)


def softmax_kernel(seed):
    """The default feature map: hyperbolic, regularized, orthogonal."""
    half = ops.orthogonal_gaussian_matrix(
        NUM_FEATURES // 2, HEAD_DIM, seed, regularized=True
    )
    return ops.ExponentialKernel(tf.concat([half, -half], axis=0), hyperbolic=True)


def favor_plus_kernel(seed):
    """The paper's: orthogonal rows with chi(H) lengths."""
    return ops.ExponentialKernel(
        ops.orthogonal_gaussian_matrix(NUM_FEATURES, HEAD_DIM, seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel_from_seed", "bound"), [(softmax_kernel, 0.075), (favor_plus_kernel, 0.21)]
)
def test_error_against_exact_softmax(kernel_from_seed, bound):
    errors = []
    for seed, (inputs, exact) in enumerate(exact_draws()):
        kernel = kernel_from_seed(tf.constant([seed, 1]))
        errors.append(error(ops.bidirectional_attention(*inputs, kernel), exact))
        # the inputs are those of the table: what the average of all values leaves
        mean = tf.ones_like(inputs[2]) * tf.reduce_mean(inputs[2], axis=1)
        assert 0.2 < error(mean, exact) < 0.3
    print(f"relative error {np.mean(errors):.3f}, bound {bound}")
    assert 0.5 * bound < np.mean(errors) < bound
