"""absorb_keys and answer_queries: attention to a sequence that comes in pieces."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import (
    KERNELS,
    assert_all_close,
    float64,
    masks,
    qkv,
    value_and_gradients,
)

PIECES = [1, 7, 5]  # of 13 keys; queries come in pieces of their own


def two_passes(kernel, mask=None, pieces=PIECES):
    def attend(query, key, value):
        batch, _, heads, head_dim = key.shape
        features = kernel.num_features(head_dim)
        dtype = "float64" if key.dtype == "float64" else "float32"
        state = ops.initial_state(batch, heads, features, value.shape[3], dtype)
        piece_masks = [None] * len(pieces)
        if mask is not None:
            piece_masks = tf.split(mask, pieces, axis=1)
        for k, v, m in zip(
            tf.split(key, pieces, 1), tf.split(value, pieces, 1), piece_masks
        ):
            state = ops.absorb_keys(k, v, kernel, m, state)
        queries = query[:, :4], query[:, 4:]
        return tf.concat([ops.answer_queries(q, kernel, state) for q in queries], 1)

    return attend


def slow(kernel, mask=None):
    return lambda q, k, v: reference.attention(q, k, v, kernel, mask)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name, groups):
    kernel = KERNELS[name]()
    inputs = qkv(batch=2, queries=11, keys=13, heads=2, groups=groups)
    actual = value_and_gradients(two_passes(kernel), inputs)
    assert_all_close(actual, value_and_gradients(slow(kernel), inputs), 1e-10)
    one_pass = value_and_gradients(
        lambda q, k, v: ops.bidirectional_attention(q, k, v, kernel), inputs
    )
    assert_all_close(actual, one_pass, 1e-10)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 2e-5)])
@pytest.mark.parametrize("where", masks(13))
@pytest.mark.parametrize("name", ["softmax", "log_weights", "sigmoid"])
def test_masks(name, where, dtype, tolerance):
    """The last example sees no key: zeros, and gradients of zero."""
    kernel, mask = KERNELS[name](), masks(13)[where]
    inputs = qkv(batch=3, queries=11, keys=13, heads=2, groups=2, dtype=dtype)
    actual = value_and_gradients(two_passes(kernel, mask), inputs)
    for output_or_gradient in actual:
        np.testing.assert_array_equal(output_or_gradient[2], 0)
    expected = value_and_gradients(slow(kernel, mask), float64(*inputs))
    assert_all_close(actual, expected, tolerance)


@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_later_keys_that_are_much_larger(name):
    """The running maximum rises by far more than the exponent of a float32."""
    kernel = KERNELS[name]()
    query, key, value = qkv(1, queries=11, keys=13, heads=2, dtype="float32")
    for scales in (np.linspace(0.1, 12, 13), np.linspace(12, 0.1, 13)):
        inputs = query, key * tf.constant(scales[:, None, None], "float32"), value
        actual = value_and_gradients(two_passes(kernel), inputs)
        expected = value_and_gradients(slow(kernel), float64(*inputs))
        assert_all_close(actual, expected, 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_keeps_a_float32_state(dtype):
    kernel = KERNELS["softmax"]()
    inputs = [tf.cast(x, dtype) for x in qkv(1, 11, 13, heads=2, dtype="float32")]
    actual = value_and_gradients(two_passes(kernel), inputs)
    assert [x.dtype for x in actual] == [dtype] * 4
    expected = value_and_gradients(slow(kernel), float64(*inputs))
    assert_all_close(actual, expected, 2e-2 if dtype == "bfloat16" else 3e-3)
    state = ops.initial_state(1, 2, 22, 7)
    for part in ops.absorb_keys(*inputs[1:], kernel, None, state):
        assert part.dtype == "float32"


def test_the_state_starts_where_earlier_keys_left_it():
    """Gradients reach keys through all later pieces, here of a token each."""
    kernel, pieces = KERNELS["softmax"](), [1] * 13
    inputs = qkv(1, queries=11, keys=13, heads=1)
    actual = value_and_gradients(two_passes(kernel, pieces=pieces), inputs)
    assert_all_close(actual, value_and_gradients(slow(kernel), inputs), 1e-10)
