"""How close the softmax feature maps come to exact softmax attention, at length 4096.

Relative Frobenius error of the output, float32 against exact softmax in float64, mean
of 2 draws of inputs and projection, 256 features; q, k ~ N(0, std^2), V ~ N(0, 1).
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

LENGTH, NUM_FEATURES, NUM_DRAWS = 4096, 256, 2


def draw_inputs(head_dim, std, seed):
    rng = np.random.default_rng((head_dim, seed))
    query, key, value = rng.standard_normal((3, LENGTH, head_dim))
    return std * query, std * key, value


def exact_attention(query, key, value, causal, rows=256):
    """Exact softmax attention in float64, a block of rows at a time."""
    output = np.empty_like(value)
    for start in range(0, LENGTH, rows):
        stop = start + rows
        seen = stop if causal else LENGTH
        scores = query[start:stop] @ key[:seen].T / np.sqrt(query.shape[1])
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores, out=scores)
        if causal:
            weights *= np.tri(rows, seen, k=start)
        output[start:stop] = weights @ value[:seen]
        output[start:stop] /= weights.sum(axis=1, keepdims=True)
    return output


@functools.cache
def exact_draws(head_dim, std, causal):
    """`NUM_DRAWS` times the inputs in float32 and the exact output in float64."""
    draws = []
    for seed in range(NUM_DRAWS):
        inputs = draw_inputs(head_dim, std, seed)
        rounded = [tf.constant(x[None, :, None], "float32") for x in inputs]
        draws.append((rounded, exact_attention(*inputs, causal)))
    return draws


def error(output, exact):
    difference = np.reshape(output, exact.shape) - exact
    return np.linalg.norm(difference) / np.linalg.norm(exact)


def softmax_kernel(head_dim, seed):
    """The default feature map: hyperbolic, regularized, orthogonal."""
    half = ops.orthogonal_gaussian_matrix(
        NUM_FEATURES // 2, head_dim, seed, regularized=True
    )
    return ops.ExponentialKernel(tf.concat([half, -half], axis=0), hyperbolic=True)


def favor_plus_kernel(head_dim, seed):
    """The paper's: orthogonal rows with chi(H) lengths."""
    return ops.ExponentialKernel(
        ops.orthogonal_gaussian_matrix(NUM_FEATURES, head_dim, seed)
    )


def mean_error(kernel_from_seed, head_dim, std, causal):
    @tf.function
    def attend(query, key, value, seed):
        kernel = kernel_from_seed(head_dim, seed)
        if causal:
            return ops.causal_attention(query, key, value, kernel)[0]
        return ops.bidirectional_attention(query, key, value, kernel)

    draws = exact_draws(head_dim, std, causal)
    return np.mean(
        [
            error(attend(*inputs, tf.constant([seed, 1])), exact)
            for seed, (inputs, exact) in enumerate(draws)
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel_from_seed", "head_dim", "std", "causal", "bound"),
    [
        (softmax_kernel, 16, 0.5, False, 0.075),
        (softmax_kernel, 64, 0.5, False, 0.32),
        (softmax_kernel, 16, 0.5, True, 0.062),
        (favor_plus_kernel, 16, 0.5, False, 0.21),
    ],
)
def test_error_against_exact_softmax(kernel_from_seed, head_dim, std, causal, bound):
    measured = mean_error(kernel_from_seed, head_dim, std, causal)
    print(f"relative error {measured:.3f}, bound {bound}")
    assert 0.5 * bound < measured < bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "std", "low", "high"),
    [(16, 0.5, 0.2, 0.3), (64, 0.5, 0.2, 0.3)],
)
def test_error_of_predicting_the_mean_of_the_values(head_dim, std, low, high):
    """Shows that the inputs above are those of the table, and what a bar means."""
    errors = [
        error(tf.ones_like(inputs[2]) * tf.reduce_mean(inputs[2], axis=1), exact)
        for inputs, exact in exact_draws(head_dim, std, False)
    ]
    print(f"relative error of mean(V) {np.mean(errors):.3f}")
    assert low < np.mean(errors) < high
