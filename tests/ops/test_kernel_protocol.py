"""Kernels may be subclasses, have parameters of each head, and be trained."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.linear import bidirectional

from .cases import (
    HEAD_DIM,
    assert_all_close,
    assert_equals,
    masks,
    normal,
    pairs,
    qkv,
    value_and_gradients,
)

BATCH, LENGTH, HEADS, GROUPS, FEATURES = 3, 29, 2, 2, 14


def dense(query, key, value, features, mask=None, causal=False):
    """Attention by the whole matrix, which autodiff differentiates.

    `features(x, is_key)` gives `(B, length, K, ..., M)` of x `(B, length, K, ..., H)`.
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


# Two ways to call each attention, with several blocks or chunks each.
def attend_to_all(query, key, value, kernel, mask):
    visible = ops.Visibility.of(mask)
    kernel = kernel.astype(query.dtype)
    return bidirectional.attend_to_all(
        kernel, visible, query, key, value, block_tokens=8
    )


def attend_to_past(query, key, value, kernel, mask):
    return ops.causal_attention(query, key, value, kernel, mask, chunk_size=3)[0]


def absorb_and_answer(query, key, value, kernel, mask):
    num_features = kernel.num_features(HEAD_DIM)
    state = ops.initial_state(BATCH, HEADS, num_features, value.shape[3], "float64")
    state = ops.absorb_keys(key, value, kernel, mask, state)
    return ops.answer_queries(query, kernel, state)


def token_by_token(query, key, value, kernel, mask):
    outputs, state = [], None
    for t in range(query.shape[1]):
        now = slice(t, t + 1)
        output, state = ops.causal_attention(
            query[:, now],
            key[:, now],
            value[:, now],
            kernel,
            None if mask is None else mask[:, now],
            state,
        )
        outputs.append(output)
    return tf.concat(outputs, 1)


ATTENTIONS = {
    "all": (attend_to_all, False),
    "past": (attend_to_past, True),
    "states": (absorb_and_answer, False),
    "tokens": (token_by_token, True),
}


# Kernels of parameters, and the features that they define.
def exponential(hyperbolic, matrix, log_weights):
    kernel = ops.ExponentialKernel(matrix, hyperbolic, log_weights, trainable=True)

    def features(x, is_key):
        # only the first half of a hyperbolic matrix is read
        half = matrix[..., : matrix.shape[-2] // 2, :]
        w = tf.concat([half, -half], -2) if hyperbolic else matrix
        w = tf.broadcast_to(w, (HEADS, *w.shape[-2:]))
        logs = tf.einsum("btkgh,kmh->btkgm", x, w)
        if is_key:
            logs -= tf.reduce_sum(x * x, -1, keepdims=True) / 2
            logs += tf.broadcast_to(log_weights, (HEADS, FEATURES))[:, tf.newaxis]
        return tf.exp(logs)

    return kernel, features


def activation(matrix):
    kernel = ops.ActivationKernel(matrix, tf.nn.softplus, trainable=True)

    def features(x, is_key):
        w = tf.broadcast_to(matrix, (HEADS, *matrix.shape[-2:]))
        return tf.nn.softplus(tf.einsum("btkgh,kmh->btkgm", x, w)) + 1e-3

    return kernel, features


class TwoMatrices(ops.Kernel):
    """Another matrix for queries than for keys, of each head; two methods more."""

    def __init__(self, query_matrix, key_matrix):
        parameters = {"queries": query_matrix, "keys": key_matrix}
        super().__init__(parameters, trainable=True)

    def num_features(self, head_dim):
        return self.parameters["queries"].shape[-2]

    def project_queries(self, x):
        return project_heads(x, self.parameters["queries"])

    def project_keys(self, y, mask):
        return (project_heads(y, self.parameters["keys"]),)

    def query_features(self, a, r):
        return (tf.nn.sigmoid(a),), tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        features = tf.exp(-b[0] * b[0])
        return (features if mask is None else tf.where(mask, features, 0),)


def project_heads(x, matrix):
    by_head = tf.reshape(x, (-1, HEADS, *x.shape[1:]))
    projected = tf.einsum("bkth,kmh->bktm", by_head, matrix) * HEAD_DIM**-0.25
    return tf.reshape(projected, (-1, x.shape[1], matrix.shape[1]))


def two_matrices(query_matrix, key_matrix):
    def features(x, is_key):
        projected = tf.einsum(
            "btkgh,kmh->btkgm", x, key_matrix if is_key else query_matrix
        )
        return tf.exp(-projected * projected) if is_key else tf.nn.sigmoid(projected)

    return TwoMatrices(query_matrix, key_matrix), features


MATRIX, OF_HEADS = (FEATURES, HEAD_DIM), (HEADS, FEATURES, HEAD_DIM)
# a function of parameters, and the shapes of these
KERNELS = {
    "one matrix": (functools.partial(exponential, False), [MATRIX, (FEATURES,)]),
    "a matrix of each head": (
        functools.partial(exponential, False),
        [OF_HEADS, (HEADS, FEATURES)],
    ),
    "hyperbolic": (
        functools.partial(exponential, True),
        [OF_HEADS, (HEADS, FEATURES)],
    ),
    "activation": (activation, [OF_HEADS]),
    "queries and keys": (two_matrices, [OF_HEADS, OF_HEADS]),
}


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
    make, shapes = KERNELS[name]
    function, causal = ATTENTIONS[attention]
    parameters = [normal(shape, (8, i), 0.7) for i, shape in enumerate(shapes)]
    inputs = [*qkv(BATCH, LENGTH, LENGTH, HEADS, GROUPS), *parameters]
    mask = masks(LENGTH)["different"]

    def fast(query, key, value, *parameters):
        kernel, _ = make(*parameters)
        return function(query, key, value, kernel, tf.constant(mask))

    def slow(query, key, value, *parameters):
        _, features = make(*parameters)
        return dense(query, key, value, features, mask, causal)

    expected = value_and_gradients(slow, inputs)
    assert_all_close(value_and_gradients(fast, inputs), expected, 1e-10)
    assert all(np.abs(x).max() > 1e-3 for x in expected)


def test_gradients_of_parameters_in_compiled_passes():
    make, shapes = KERNELS["a matrix of each head"]
    parameters = [normal(shape, (8, i), 0.7) for i, shape in enumerate(shapes)]
    inputs = [*qkv(BATCH, 9, 9, HEADS, GROUPS), *parameters]

    def compiled(query, key, value, *parameters):
        kernel, _ = make(*parameters)
        return ops.bidirectional_attention(query, key, value, kernel, jit_compile=True)

    def slow(query, key, value, *parameters):
        return dense(query, key, value, make(*parameters)[1])

    assert_equals(compiled, slow, inputs)


def test_a_block_with_a_dwarfing_key_has_gradients_of_parameters_too():
    """The token-by-token form of causal attention."""
    make, shapes = KERNELS["hyperbolic"]
    parameters = [normal(shape, (8, i), 0.7) for i, shape in enumerate(shapes)]
    query, key, value = qkv(BATCH, LENGTH, LENGTH, HEADS, GROUPS)
    scale = np.where(np.arange(LENGTH) % 10 == 0, 12.0, 1.0)[:, None, None]
    inputs = [query, key * scale, value, *parameters]

    def fast(query, key, value, *parameters):
        return attend_to_past(query, key, value, make(*parameters)[0], None)

    def slow(query, key, value, *parameters):
        return dense(query, key, value, make(*parameters)[1], causal=True)

    assert_equals(fast, slow, inputs, 1e-8)


class Tempered(ops.ExponentialKernel):
    """The softmax kernel with keys that fade with their norm; options of its own."""

    def __init__(self, projection_matrix, hyperbolic, strength):
        self.strength = strength
        super().__init__(projection_matrix, hyperbolic)

    def bias(self, y, mask):
        return self.strength * super().bias(y, mask)

    def pull_keys(self, y, mask, db, v, dv):
        return ops.Kernel.pull_keys(self, y, mask, db, v, dv)


@pytest.mark.parametrize("attention", ["all", "tokens"])
def test_a_subclass_survives_every_conversion(attention):
    """float32 parameters, float64 inputs, decoding: all of them convert."""
    function, causal = ATTENTIONS[attention]
    matrix = pairs(FEATURES, HEAD_DIM)
    kernel = Tempered(matrix, True, 3.0)

    def features(x, is_key):
        logs = tf.einsum("btkgh,mh->btkgm", x, tf.cast(matrix, x.dtype))
        if is_key:
            logs -= 3.0 * tf.reduce_sum(x * x, -1, keepdims=True) / 2
        return tf.exp(logs)

    assert_equals(
        lambda *x: function(*x, kernel, None),
        lambda *x: dense(*x, features, None, causal),
        qkv(BATCH, LENGTH, LENGTH, HEADS, GROUPS),
    )


@pytest.mark.parametrize(
    "convert",
    [
        lambda kernel: kernel.astype("float64"),
        lambda kernel: kernel.in_one_part(),
        lambda kernel: kernel.with_gradients(),
        lambda kernel: kernel.with_parameters(kernel.parameters),
        lambda kernel: kernel.blank().with_parameters(kernel.parameters),
    ],
)
def test_conversions_keep_class_and_options(convert):
    kernel = convert(Tempered(pairs(FEATURES, HEAD_DIM), True, 3.0))
    assert type(kernel) is Tempered
    assert kernel.strength == 3.0


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
    x = tf.ones((1, 3, 4, 2))
    for kernel in (
        ops.ActivationKernel(tf.ones((2, 5, 2)), tf.nn.relu),
        ops.ExponentialKernel(tf.ones((5, 2)), log_weights=tf.ones((2, 5))),
    ):
        for attention in (ops.bidirectional_attention, ops.causal_attention):
            with pytest.raises(ValueError, match=r"value, 4.*Received.*\(2, 5"):
                attention(x, x, x, kernel)
        state = ops.initial_state(1, 4, 5, 2)
        with pytest.raises(ValueError, match="each head of key and value, 4"):
            ops.absorb_keys(x, x, kernel, None, state)


def test_causality_where_all_keys_are_seen_is_refused():
    x = tf.ones((1, 3, 1, 2))
    kernel, visible = ops.ActivationKernel(None, tf.nn.relu), ops.Visibility(None, True)
    with pytest.raises(ValueError, match="absorb_keys.*causal_attention"):
        ops.absorb_keys(x, x, kernel, visible, ops.initial_state(1, 1, 2, 2))
    with pytest.raises(ValueError, match="bidirectional_attention.*causal_attention"):
        ops.bidirectional_attention(x, x, x, kernel, visible)


class Offset(ops.Kernel):
    """Features of an option that begins with an underscore."""

    def __init__(self, offset):
        self._offset = offset
        super().__init__({})

    def query_features(self, a, r):
        return (a**2 + self._offset,), tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        return (b[0] ** 2 + self._offset,)


def test_private_options_reach_what_is_compiled():
    query, key, value = qkv(1, 5, 5, 1, dtype="float32")
    plain, compiled = (
        ops.bidirectional_attention(
            query, key, value, Offset(0.5), jit_compile=jit_compile
        )
        for jit_compile in (False, True)
    )
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)
    assert Offset(0.5).identity() != Offset(0.25).identity()


def test_options_that_cannot_be_compared_are_refused_where_they_count():
    query, key, value = qkv(1, 5, 5, 1, dtype="float32")
    kernel = Offset(np.float32(0.5))
    kernel.sizes = [1, 2]
    ops.bidirectional_attention(query, key, value, kernel)
    with pytest.raises(TypeError, match="hashable.*jit_compile=False.*sizes"):
        ops.bidirectional_attention(query, key, value, kernel, jit_compile=True)


def test_a_visibility_takes_the_masks_that_functions_take():
    mask = [[1, 1, 0, 1, 0]]
    query, key, value = qkv(1, 5, 5, 1)
    kernel = ops.ActivationKernel(None, tf.nn.softplus)
    for attention in (
        lambda mask: ops.bidirectional_attention(query, key, value, kernel, mask),
        lambda mask: ops.causal_attention(query, key, value, kernel, mask)[0],
        lambda mask: ops.exact_attention(query, key, value, mask),
    ):
        np.testing.assert_array_equal(attention(ops.Visibility(mask)), attention(mask))
