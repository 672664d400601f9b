"""Features of the kernels estimate their weights as well as promised."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from keras_performer import ops
from keras_performer.ops import reference

from .cases import assert_all_close, normal, pairs, qkv, value_and_gradients

NUM_DRAWS = 2000


def inputs(head_dim, std=0.5):
    query = normal((1, 5, 1, head_dim), seed=1, std=std)
    return query, normal((1, 7, 1, head_dim), seed=2, std=std)


def softmax_kernel_of(query, key):
    scale = query.shape[-1] ** 0.5
    return np.exp(query[0, :, 0].numpy() @ key[0, :, 0].numpy().T / scale)


def estimates(kernel_from_seed, query, key, count=NUM_DRAWS):
    """Estimates `(count, T, S)` of `exp(q . k / sqrt(H))` by independent draws."""

    def estimate(i):
        kernel = kernel_from_seed(tf.stack([i, 7]))
        return tf.exp(reference.log_kernel(query, key, kernel)[0, 0])

    @tf.function
    def all_estimates():
        return tf.map_fn(estimate, tf.range(count), fn_output_signature="float64")

    return all_estimates().numpy()


def z_scores(draws, expected):
    standard_error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return np.abs(draws.mean(axis=0) - expected) / standard_error


def favor_plus(num_features, head_dim):
    def kernel_from_seed(seed):
        matrix = ops.orthogonal_gaussian_matrix(num_features, head_dim, seed)
        return ops.ExponentialKernel(matrix)

    return kernel_from_seed


@pytest.mark.parametrize("num_features", [1, 13])
def test_favor_plus_estimates_the_softmax_kernel_without_bias(num_features):
    query, key = inputs(head_dim=8)
    draws = estimates(favor_plus(num_features, 8), query, key)
    assert z_scores(draws, softmax_kernel_of(query, key)).max() < 4.5


def test_hyperbolic_pairs_estimate_the_softmax_kernel_without_bias():
    def kernel_from_seed(seed):
        half = ops.orthogonal_gaussian_matrix(6, 8, seed)
        return ops.ExponentialKernel(tf.concat([half, -half], 0), hyperbolic=True)

    query, key = inputs(head_dim=8)
    draws = estimates(kernel_from_seed, query, key)
    assert z_scores(draws, softmax_kernel_of(query, key)).max() < 4.5


def test_log_weights_correct_for_the_density_that_rows_are_drawn_from():
    """Rows from N(0, 1.5 I) with log N(w; 0, I) - log N(w; 0, 1.5 I)."""

    def kernel_from_seed(seed):
        matrix = 1.5**0.5 * ops.gaussian_matrix(13, 8, seed)
        squares = tf.reduce_sum(matrix**2, axis=-1)
        log_weights = -squares / 2 + squares / 3 + 8 / 2 * np.log(1.5)
        return ops.ExponentialKernel(matrix, log_weights=log_weights)

    query, key = inputs(head_dim=8)
    draws = estimates(kernel_from_seed, query, key)
    assert z_scores(draws, softmax_kernel_of(query, key)).max() < 4.5


def test_regularized_rows_estimate_the_smreg_kernel_without_bias():
    """E exp(w . u) for w uniform on the sphere of radius sqrt(H), by a Bessel function.

    The SMREG kernel of section 2.3, a lower bound of the softmax kernel (Theorem 1).
    """

    def kernel_from_seed(seed):
        matrix = ops.orthogonal_gaussian_matrix(8, 8, seed, regularized=True)
        return ops.ExponentialKernel(matrix)

    query, key = inputs(head_dim=8)
    x, y = (z[0, :, 0].numpy() / 8**0.25 for z in (query, key))
    radius = 8**0.5 * np.linalg.norm(x[:, None] + y, axis=-1)
    mean = special.gamma(4) * (2 / radius) ** 3 * special.iv(3, radius)
    norms = (x**2).sum(-1)[:, None] + (y**2).sum(-1)
    expected = mean * np.exp(-norms / 2)
    assert (expected < softmax_kernel_of(query, key)).all()
    draws = estimates(kernel_from_seed, query, key)
    assert z_scores(draws, expected).max() < 4.5
    assert z_scores(draws, softmax_kernel_of(query, key)).max() > 10


def test_orthogonal_rows_have_less_variance_than_independent_ones():
    """Theorem 2, by many standard errors of the difference in mean squared error."""

    def independent(seed):
        return ops.ExponentialKernel(ops.gaussian_matrix(16, 16, seed))

    query, key = inputs(head_dim=16, std=0.3)
    expected = softmax_kernel_of(query, key)
    squares = [
        ((estimates(draw, query, key, 3000) - expected) ** 2).mean(axis=(1, 2))
        for draw in (favor_plus(16, 16), independent)
    ]
    errors = [x.std(ddof=1) / np.sqrt(len(x)) for x in squares]
    assert (squares[1].mean() - squares[0].mean()) / np.hypot(*errors) > 4.5


def test_hyperbolic_equals_the_full_matrix():
    """Pairs w, -w multiplied once or twice: the same attention and gradients."""
    matrix = pairs(22, 5)
    assert np.abs(tf.reduce_sum(matrix, axis=0)).max() < 1e-6
    log_weights = normal((22,), seed=4, dtype="float32")
    half, full = (
        ops.ExponentialKernel(matrix, hyperbolic, log_weights)
        for hyperbolic in (True, False)
    )
    inputs = qkv(2, queries=29, keys=29, heads=3)

    def both(kernel, *inputs):
        causal, _ = ops.causal_attention(*inputs, kernel, chunk_size=3)
        return causal + 2 * ops.bidirectional_attention(*inputs, kernel)

    by_half = value_and_gradients(lambda *x: both(half, *x), inputs)
    by_full = value_and_gradients(lambda *x: both(full, *x), inputs)
    assert_all_close(by_half, by_full, 1e-12)


def test_an_odd_hyperbolic_matrix_is_refused():
    with pytest.raises(ValueError, match=r"even number of rows.*Received.*\(7, 5\)"):
        ops.ExponentialKernel(ops.gaussian_matrix(7, 5, (0, 1)), hyperbolic=True)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_attention_on_paper(causal):
    """H = 1, rows w = 1 and w = -1: the weights are cosh(q + k) exp(-k^2 / 2)."""
    query, key = np.array([1.0, -0.5]), np.array([0.0, 2.0])
    weights = np.cosh(query[:, None] + key) * np.exp(-(key**2) / 2)
    weights = np.tril(weights) if causal else weights
    expected = weights @ [10.0, 20.0] / weights.sum(axis=1)
    inputs = [tf.reshape(x, (1, 2, 1, 1)) for x in (query, key, [[10.0], [20.0]])]
    inputs[2] = tf.cast(inputs[2], "float64")
    kernel = ops.ExponentialKernel([[1.0], [-1.0]], hyperbolic=True)
    if causal:
        output, _ = ops.causal_attention(*inputs, kernel)
    else:
        output = ops.bidirectional_attention(*inputs, kernel)
    np.testing.assert_allclose(tf.reshape(output, -1), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "unprojected"])
def test_no_gradient_reaches_what_defines_the_kernel(name):
    query, key, value = qkv(1, queries=5, keys=5, heads=1, dtype="float32")
    matrix = tf.Variable(ops.gaussian_matrix(6, 5, (0, 1)))
    log_weights = tf.Variable(tf.zeros(6))
    with tf.GradientTape() as tape:
        if name == "softmax":
            kernel = ops.ExponentialKernel(matrix, log_weights=log_weights)
        else:
            kernel = ops.ActivationKernel(matrix, tf.nn.softplus)
        loss = tf.reduce_sum(ops.bidirectional_attention(query, key, value, kernel))
        loss += tf.reduce_sum(ops.causal_attention(query, key, value, kernel)[0])
    assert tape.gradient(loss, [matrix, log_weights]) == [None, None]


def test_epsilon_is_added_to_each_feature():
    """With an epsilon far above the features, attention becomes the mean."""
    query, key, value = qkv(1, queries=3, keys=11, heads=2, dtype="float64")
    matrix = ops.gaussian_matrix(17, 5, (0, 1))
    kernel = ops.ActivationKernel(matrix, tf.nn.relu, epsilon=1e9)
    output = ops.bidirectional_attention(query, key, value, kernel)
    mean = tf.broadcast_to(tf.reduce_mean(value, axis=1, keepdims=True), output.shape)
    np.testing.assert_allclose(output, mean, atol=1e-7)
    assert ops.ActivationKernel(matrix, tf.nn.relu).epsilon == 1e-3


def test_taylor_features_of_a_rank_see_the_first_elements():
    inputs = qkv(1, queries=5, keys=11, heads=2, groups=2)

    def of_first_elements(query, key, value):
        logits = tf.einsum(
            "btnh,bsnh->bnts", query[..., :3], tf.repeat(key, 2, 2)[..., :3]
        )
        logits /= query.shape[-1] ** 0.5
        weights = 1 + logits + logits**2 / 2
        weights /= tf.reduce_sum(weights, -1, keepdims=True)
        return tf.einsum("bnts,bsnv->btnv", weights, tf.repeat(value, 2, 2))

    kernel = ops.TaylorKernel(rank=3)
    assert kernel.num_features(5) == 10
    actual = value_and_gradients(
        lambda *x: ops.bidirectional_attention(*x, kernel), inputs
    )
    assert_all_close(actual, value_and_gradients(of_first_elements, inputs), 1e-12)
    whole = [ops.TaylorKernel(rank).num_features(5) for rank in (5, 9, None)]
    assert whole == [21, 21, 21]
