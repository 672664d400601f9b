"""The slow reference itself: cases on paper, and its forms against each other."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import KERNELS, assert_all_close, masks, normal, qkv, value_and_gradients


def column(*numbers):
    """Numbers as a sequence: shape `(1, len(numbers), 1, 1)`, head size 1."""
    return tf.constant(numbers, tf.float64)[None, :, None, None]


def test_softmax_kernel_on_paper():
    """H = 1, rows w = 1 and w = -1: the weights are cosh(q + k) exp(-k^2 / 2)."""
    kernel = ops.ExponentialKernel([[1.0], [-1.0]])
    weights = np.array([np.cosh(1.0), np.cosh(1.0 + 2.0) * np.exp(-2.0)])
    weights /= weights.sum()
    query, key, value = column(1.0), column(0.0, 2.0), column(10.0, 20.0)
    np.testing.assert_allclose(
        reference.attention_matrix(query, key, kernel)[0, 0, 0], weights, rtol=1e-12
    )
    output = reference.attention(query, key, value, kernel)
    np.testing.assert_allclose(output[0, 0, 0], [weights @ [10.0, 20.0]], rtol=1e-12)


def test_relu_kernel_on_paper():
    """H = 1: features relu(w x) + 1, for w = 1 and w = -2."""
    kernel = ops.ActivationKernel([[1.0], [-2.0]], tf.nn.relu, epsilon=1.0)
    # query 3: (4, 1). key 1: (2, 1) -> 9. key -1: (1, 3) -> 7.
    matrix = reference.attention_matrix(column(3.0), column(1.0, -1.0), kernel)
    np.testing.assert_allclose(matrix[0, 0, 0], [9 / 16, 7 / 16], rtol=1e-12)


def test_exact_softmax_on_paper():
    query, key, value = column(1.0, 0.0), column(np.log(3.0), 0.0), column(4.0, 8.0)
    output = reference.exact_softmax_attention(query, key, value)
    np.testing.assert_allclose(tf.reshape(output, -1), [5.0, 6.0], rtol=1e-12)
    output = reference.exact_softmax_attention(query, key, value, causal=True)
    np.testing.assert_allclose(tf.reshape(output, -1), [4.0, 6.0], rtol=1e-12)


def test_many_features_approach_exact_softmax():
    query, key, value = qkv(batch=1, queries=3, keys=11, heads=2, groups=2, std=0.7)
    kernel = ops.ExponentialKernel(ops.gaussian_matrix(200_000, 5, (0, 1)))
    assert_all_close(
        [reference.attention(query, key, value, kernel)],
        [reference.exact_softmax_attention(query, key, value)],
        2e-2,
    )


def test_grouped_queries_use_the_head_of_their_group():
    query, key, value = qkv(batch=2, queries=3, keys=7, heads=2, groups=3)
    kernel = KERNELS["favor+"]()
    whole = reference.attention(query, key, value, kernel)
    for head in range(6):
        group = slice(head // 3, head // 3 + 1)
        alone = reference.attention(
            query[:, :, head : head + 1], key[:, :, group], value[:, :, group], kernel
        )
        np.testing.assert_allclose(whole[:, :, head : head + 1], alone, rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_masked_keys_are_dropped_and_unseeing_rows_are_zero(causal):
    query, key, value = qkv(batch=1, queries=4, keys=4, heads=1)
    mask = np.array([[False, True, False, True]])
    for function in (
        lambda q, k, v, m: reference.attention(q, k, v, KERNELS["favor+"](), m, causal),
        lambda q, k, v, m: reference.attention(q, k, v, KERNELS["relu"](), m, causal),
        lambda q, k, v, m: reference.exact_softmax_attention(q, k, v, m, causal),
    ):
        output = function(query, key, value, mask)
        if causal:
            np.testing.assert_array_equal(output[:, 0], 0)
            np.testing.assert_allclose(output[0, 2, 0], value[0, 1, 0], rtol=1e-12)
        visible = function(query[:, 3:], key[:, 1::2], value[:, 1::2], None)
        if not causal:
            np.testing.assert_allclose(output[:, 3:], visible, rtol=1e-12)
        unseeing = function(query, key, value, np.zeros((1, 4), bool))
        np.testing.assert_array_equal(unseeing, 0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_recurrence_equals_the_causal_matrix(name, masked):
    kernel = KERNELS[name]()
    inputs = qkv(batch=3, queries=13, keys=13, heads=2, groups=2)
    mask = masks(13)["different"] if masked else None

    def by_matrix(q, k, v):
        return reference.attention(q, k, v, kernel, mask, causal=True)

    def by_token(q, k, v):
        return reference.recurrent_attention(q, k, v, kernel, mask)[0]

    actual = value_and_gradients(by_token, inputs)
    assert_all_close(actual, value_and_gradients(by_matrix, inputs), 1e-11)


def test_recurrence_continues_from_its_state():
    kernel = KERNELS["softmax"]()
    query, key, value = qkv(batch=2, queries=7, keys=7, heads=3)
    whole, state = reference.recurrent_attention(query, key, value, kernel)
    _, early = reference.recurrent_attention(
        query[:, :3], key[:, :3], value[:, :3], kernel
    )
    late, continued = reference.recurrent_attention(
        query[:, 3:], key[:, 3:], value[:, 3:], kernel, state=early
    )
    assert_all_close([late, *continued], [whole[:, 3:], *state], 1e-12)


def test_log_kernel_of_antithetic_rows_is_the_cosh_of_lemma_1():
    """With rows w and -w: exp(-(|x|^2 + |y|^2) / 2) times the mean of cosh(w.(x+y))."""
    query, key = normal((1, 2, 1, 4), seed=1), normal((1, 3, 1, 4), seed=2)
    half = ops.gaussian_matrix(6, 4, (0, 2)).numpy().astype("float64")
    kernel = ops.ExponentialKernel(np.concatenate([half, -half]).astype("float32"))
    x, y = query[0, :, 0].numpy() / 4**0.25, key[0, :, 0].numpy() / 4**0.25
    sums = x[:, None] + y[None]
    cosh = np.cosh(np.einsum("mh,tsh->tsm", half, sums)).mean(axis=-1)
    norms = (x**2).sum(-1)[:, None] + (y**2).sum(-1)[None]
    np.testing.assert_allclose(
        np.exp(reference.log_kernel(query, key, kernel)[0, 0]),
        cosh * np.exp(-norms / 2),
        rtol=1e-12,
    )
