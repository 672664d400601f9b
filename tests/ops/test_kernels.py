"""Features of kernels estimate their weights without bias."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from keras_performer import ops
from tests.ops import reference

from .cases import normal, qkv

NUM_DRAWS = 2000


def inputs():
    return normal((1, 5, 1, 8), seed=1, std=0.5), normal((1, 7, 1, 8), seed=2, std=0.5)


def softmax_kernel_of(query, key):
    scale = query.shape[-1] ** 0.5
    return np.exp(query[0, :, 0].numpy() @ key[0, :, 0].numpy().T / scale)


def estimates(kernel_from_seed, query, key):
    """Returns independent estimates of `exp(q . k / sqrt(H))`, `(NUM_DRAWS, T, S)`."""

    def estimate(i):
        kernel = kernel_from_seed(tf.stack([i, 7]))
        return tf.exp(reference.log_kernel(query, key, kernel)[0, 0])

    @tf.function
    def all_estimates():
        return tf.map_fn(estimate, tf.range(NUM_DRAWS), fn_output_signature="float64")

    return all_estimates().numpy()


def z_scores(draws, expected):
    standard_error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return np.abs(draws.mean(axis=0) - expected) / standard_error


def favor_plus(num_features, **options):
    return lambda seed: ops.ExponentialKernel(
        ops.orthogonal_gaussian_matrix(num_features, 8, seed, **options)
    )


def hyperbolic(seed):
    half = ops.orthogonal_gaussian_matrix(6, 8, seed)
    return ops.ExponentialKernel(tf.concat([half, -half], 0), hyperbolic=True)


def corrected(seed):
    """Returns rows w from N(0, 1.5 I), with log N(w; 0, I) - log N(w; 0, 1.5 I)."""
    matrix = 1.5**0.5 * ops.gaussian_matrix(13, 8, seed)
    squares = tf.reduce_sum(matrix**2, axis=-1)
    log_weights = -squares / 2 + squares / 3 + 8 / 2 * np.log(1.5)
    return ops.ExponentialKernel(matrix, log_weights=log_weights)


@pytest.mark.parametrize(
    "kernel_from_seed", [favor_plus(1), favor_plus(13), hyperbolic, corrected]
)
def test_the_softmax_kernel_is_estimated_without_bias(kernel_from_seed):
    query, key = inputs()
    draws = estimates(kernel_from_seed, query, key)
    assert z_scores(draws, softmax_kernel_of(query, key)).max() < 4.5


def test_regularized_rows_estimate_the_smreg_kernel_without_bias():
    """E exp(w . u) for w uniform on the sphere of radius sqrt(H), by a Bessel function.

    The SMREG kernel of section 2.3, a lower bound of the softmax kernel (Theorem 1).
    """
    query, key = inputs()
    x, y = (z[0, :, 0].numpy() / 8**0.25 for z in (query, key))
    radius = 8**0.5 * np.linalg.norm(x[:, None] + y, axis=-1)
    mean = special.gamma(4) * (2 / radius) ** 3 * special.iv(3, radius)
    norms = (x**2).sum(-1)[:, None] + (y**2).sum(-1)
    expected = mean * np.exp(-norms / 2)
    assert (expected < softmax_kernel_of(query, key)).all()
    draws = estimates(favor_plus(8, regularized=True), query, key)
    assert z_scores(draws, expected).max() < 4.5
    assert z_scores(draws, softmax_kernel_of(query, key)).max() > 10


def test_an_odd_hyperbolic_matrix_is_refused():
    with pytest.raises(ValueError, match=r"even number of rows.*Received.*\(7, 5\)"):
        ops.ExponentialKernel(ops.gaussian_matrix(7, 5, (0, 1)), hyperbolic=True)


def test_no_gradient_reaches_what_defines_the_kernel():
    given = qkv(1, queries=5, keys=5, heads=1, dtype="float32")
    matrix = tf.Variable(ops.gaussian_matrix(6, 5, (0, 1)))
    log_weights = tf.Variable(tf.ones(6))
    with tf.GradientTape() as tape:
        loss = 0.0
        for kernel in (
            ops.ExponentialKernel(matrix, log_weights=log_weights),
            ops.ActivationKernel(matrix, tf.nn.softplus),
        ):
            loss += tf.reduce_sum(ops.bidirectional_attention(*given, kernel))
            loss += tf.reduce_sum(ops.causal_attention(*given, kernel)[0])
    assert tape.gradient(loss, [matrix, log_weights]) == [None, None]


def test_features_are_counted():
    counts = [ops.TaylorKernel(rank).num_features(5) for rank in (3, 5, 9, None)]
    assert counts == [10, 21, 21, 21]
    assert ops.ActivationKernel(None, tf.nn.relu).epsilon == 1e-3
