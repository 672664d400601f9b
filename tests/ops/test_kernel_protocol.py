"""Kernels may be subclasses, have parameters for each head, and train."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.ops import reference

from .cases import ATTENTIONS, HEAD_DIM, assert_equals, masks, normal, pairs, qkv

BATCH, LENGTH, HEADS, GROUPS, FEATURES = 3, 29, 2, 2, 14


def dense(query, key, value, features, mask=None, causal=False):
    """Computes attention by the whole matrix, which autodiff differentiates.

    `features(x, is_key)` maps x `(B, length, K, ..., H)` to `(B, length, K, ..., M)`.
    """
    batch, length = query.shape[:2]
    query = tf.reshape(query, (batch, length, HEADS, GROUPS, HEAD_DIM))
    scale = HEAD_DIM**-0.25
    phi_q = features(query * scale, False)
    phi_k = features((key * scale)[:, :, :, tf.newaxis], True)[:, :, :, 0]
    weights = tf.einsum("btkgm,bskm->bkgts", phi_q, phi_k)
    seen = np.ones((length, length), bool)
    seen = np.tril(seen) if causal else seen
    seen = seen[None] if mask is None else seen[None] & mask[:, None]
    weights = tf.where(seen[:, None, None], weights, 0)
    total = tf.reduce_sum(weights, -1, keepdims=True)
    weights = tf.math.divide_no_nan(weights, total)
    output = tf.einsum("bkgts,bskv->btkgv", weights, value)
    return tf.reshape(output, (batch, length, HEADS * GROUPS, value.shape[3]))


def products(x, matrix):
    """Multiplies by the rows of a matrix, shared by the heads or one for each head."""
    matrix = tf.broadcast_to(tf.cast(matrix, x.dtype), (HEADS, *matrix.shape[-2:]))
    return tf.einsum("btkgh,kmh->btkgm", x, matrix)


class TwoMatrices(ops.Kernel):
    """Kernel with matrices for queries and for keys in each head; adds two methods."""

    def __init__(self, query_matrix, key_matrix):
        parameters = {"queries": query_matrix, "keys": key_matrix}
        super().__init__(parameters, trainable=True)

    def num_features(self, head_dim):
        return self.parameters["queries"].shape[-2]

    def project_queries(self, x):
        return project_heads(x, self.parameters["queries"])

    def project_keys(self, y, mask):
        return project_heads(y, self.parameters["keys"])

    def query_features(self, a, r):
        return tf.nn.sigmoid(a), tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        features = tf.exp(-b * b)
        return features if mask is None else tf.where(mask, features, 0)


def project_heads(x, matrix):
    by_head = tf.reshape(x, (-1, HEADS, *x.shape[1:]))
    projected = tf.einsum("bkth,kmh->bktm", by_head, matrix) * HEAD_DIM**-0.25
    return tf.reshape(projected, (-1, x.shape[1], matrix.shape[1]))


def of_two_matrices(query_matrix, key_matrix):
    def features(x, is_key):
        if is_key:
            return tf.exp(-(products(x, key_matrix) ** 2))
        return tf.nn.sigmoid(products(x, query_matrix))

    return features


def exponential(matrix, log_weights):
    return ops.ExponentialKernel(matrix, False, log_weights, trainable=True)


def hyperbolic(half, log_weights):
    matrix = tf.concat([half, -half], -2)
    return ops.ExponentialKernel(matrix, True, log_weights, trainable=True)


def activation(matrix):
    return ops.ActivationKernel(matrix, tf.nn.softplus, trainable=True)


OF_HEADS, HALF = (HEADS, FEATURES, HEAD_DIM), (HEADS, FEATURES // 2, HEAD_DIM)
# a function from parameters to a kernel, shapes of parameters, and features if the
# reference has none
KERNELS = {
    "one matrix": (exponential, [OF_HEADS[1:], OF_HEADS[1:2]]),
    "a matrix of each head": (exponential, [OF_HEADS, OF_HEADS[:2]]),
    "hyperbolic": (hyperbolic, [HALF, OF_HEADS[:2]]),
    "activation": (activation, [OF_HEADS]),
    "taylor": (ops.TaylorKernel, []),
    "queries and keys": (TwoMatrices, [OF_HEADS, OF_HEADS], of_two_matrices),
}


def assert_is_dense(
    name, attend, causal, mask=None, scale=1.0, tolerance=1e-10, **options
):
    """Compares outputs and gradients, also of parameters, with the whole matrix."""
    make, shapes, *own = KERNELS[name]
    parameters = [normal(shape, (8, i), 0.7) for i, shape in enumerate(shapes)]
    query, key, value = qkv(BATCH, LENGTH, LENGTH, HEADS, GROUPS)

    def fast(*given):
        return attend(*given[:3], make(*given[3:]), mask)

    def slow(*given):
        inputs, parameters = given[:3], given[3:]
        if own:
            return dense(*inputs, own[0](*parameters), mask, causal)
        kernel = make(*parameters)
        return reference.attention(*inputs, kernel, mask, causal, **options)

    inputs = [query, key * scale, value, *parameters]
    for found in assert_equals(fast, slow, inputs, tolerance):
        assert np.abs(found).max() > 1e-3


@pytest.mark.parametrize(
    "name, attention",
    [
        ("one matrix", "all"),
        ("one matrix", "tokens"),
        ("a matrix of each head", "past"),
        ("a matrix of each head", "states"),
        ("hyperbolic", "all"),
        ("hyperbolic", "past"),
        ("hyperbolic", "tokens"),
        ("activation", "states"),
        ("activation", "past"),
        ("queries and keys", "all"),
        ("queries and keys", "tokens"),
    ],
)
def test_parameters_of_heads_and_their_gradients(name, attention):
    assert_is_dense(name, *ATTENTIONS[attention], masks(LENGTH)["different"])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["a matrix of each head", "hyperbolic", "taylor"])
def test_windows_have_gradients_of_parameters_too(name, causal):
    mask, gain = masks(LENGTH)["different"], normal((HEADS * GROUPS,), 9)

    def windowed(*given):
        visible = ops.Visibility.of(given[4], causal)
        options = gain, visible, None, 4
        return ops.windowed_attention(*given[:4], 3, *options)[0]

    options = {"exact_window": 3, "log_gain": gain}
    assert_is_dense(name, windowed, causal, mask, **options)


def test_gradients_of_parameters_in_compiled_passes():
    def compiled(*given):
        return ops.bidirectional_attention(*given, jit_compile=True)

    assert_is_dense("a matrix of each head", compiled, causal=False)


def test_a_block_with_a_dwarfing_key_has_gradients_of_parameters_too():
    """Tests the rare form of causal attention."""
    scale = np.where(np.arange(LENGTH) % 10 == 0, 12.0, 1.0)[:, None, None]
    assert_is_dense("hyperbolic", *ATTENTIONS["past"], None, scale, 1e-8)


class Tempered(ops.ExponentialKernel):
    """Softmax kernel whose keys lose weight with their norm; has a private option."""

    def __init__(self, projection_matrix, hyperbolic, strength):
        self._strength = strength
        super().__init__(projection_matrix, hyperbolic)

    def bias(self, y, mask):
        return self._strength * super().bias(y, mask)

    def pull_keys(self, y, mask, db, v, dv):
        return ops.Kernel.pull_keys(self, y, mask, db, v, dv)


@pytest.mark.parametrize("attention", ["all", "tokens"])
def test_a_subclass_survives_every_conversion(attention):
    """Tests float32 parameters, float64 inputs and decoding, which convert kernels."""
    function, causal = ATTENTIONS[attention]
    matrix = pairs(FEATURES, HEAD_DIM)
    kernel = Tempered(matrix, True, 3.0)

    def features(x, is_key):
        logs = products(x, matrix)
        if is_key:
            logs -= 3.0 * tf.reduce_sum(x * x, -1, keepdims=True) / 2
        return tf.exp(logs)

    assert_equals(
        lambda *x: function(*x, kernel, None),
        lambda *x: dense(*x, features, None, causal),
        qkv(BATCH, LENGTH, LENGTH, HEADS, GROUPS),
    )


@pytest.mark.parametrize("head_dim", [5, 40])
@pytest.mark.parametrize("attention", ["all", "past"])
@pytest.mark.parametrize("trainable", [False, True])
def test_small_and_large_heads_have_the_features_of_the_whole_matrix(
    head_dim, attention, trainable
):
    """Halves of large heads are joined; a trained kernel reads the first half only."""
    attend, _ = ATTENTIONS[attention]
    x = [normal((2, 6, 1, head_dim), seed, 0.7) for seed in range(3)]
    half, unused = (normal((4, head_dim), seed) for seed in (3, 4))

    def hyperbolic(query, key, value, half=half):
        matrix = tf.concat([half, unused if trainable else -half], 0)
        kernel = ops.ExponentialKernel(matrix, True, None, trainable)
        return attend(query, key, value, kernel)

    def whole(query, key, value, half=half):
        kernel = ops.ExponentialKernel(tf.concat([half, -half], 0), trainable=trainable)
        return attend(query, key, value, kernel)

    assert_equals(hyperbolic, whole, [*x, half] if trainable else x)


def test_kernels_with_equal_options_share_what_is_compiled():
    one, same = (Tempered(pairs(8, 2, seed), True, 3.0) for seed in (0, 1))
    other = Tempered(pairs(8, 2), True, 2.0)
    assert hash(one.identity()) == hash(same.identity())
    assert one.identity() == same.identity() != other.identity()
    assert one.identity() != one.with_gradients().identity()


def test_a_kernel_without_features_says_what_is_missing():
    x = tf.ones((1, 3, 1, 2))
    kernel = ops.Kernel({"projection_matrix": tf.ones((4, 2))})
    with pytest.raises(NotImplementedError, match="Kernel must define key_features"):
        ops.bidirectional_attention(x, x, x, kernel)


def test_parameters_of_another_number_of_heads_are_refused():
    x, state = tf.ones((1, 3, 4, 2)), ops.initial_state(1, 4, 5, 2)
    for kernel in (
        ops.ActivationKernel(tf.ones((2, 5, 2)), tf.nn.relu),
        ops.ExponentialKernel(tf.ones((5, 2)), log_weights=tf.ones((2, 5))),
    ):
        for attention in (ops.bidirectional_attention, ops.causal_attention):
            with pytest.raises(ValueError, match=r"the 4 heads.*Received.*\(2, 5"):
                attention(x, x, x, kernel)
        with pytest.raises(ValueError, match="each of the 4 heads of key and value"):
            ops.absorb_keys(x, x, kernel, None, state)


def test_private_options_reach_what_is_compiled():
    kernel = Tempered(pairs(FEATURES, HEAD_DIM), True, 3.0)
    given = *qkv(1, 5, 5, 1, dtype="float32"), kernel
    plain, compiled = (
        ops.bidirectional_attention(*given, jit_compile=one) for one in (False, True)
    )
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


def test_options_that_cannot_be_compared_are_refused_where_they_count():
    query, key, value = qkv(1, 5, 5, 1, dtype="float32")
    kernel = Tempered(pairs(FEATURES, HEAD_DIM), True, np.float32(3.0))
    kernel.sizes = [1, 2]
    ops.bidirectional_attention(query, key, value, kernel)
    with pytest.raises(TypeError, match="hashable.*jit_compile=False.*sizes"):
        ops.bidirectional_attention(query, key, value, kernel, jit_compile=True)
