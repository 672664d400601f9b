"""absorb_keys and answer_queries: attention to a sequence that comes in pieces."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import KERNELS, assert_equals, masks, qkv

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


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name):
    kernel, inputs = KERNELS[name](), qkv(2, queries=11, keys=13, heads=2, groups=3)
    assert_equals(two_passes(kernel), slow(kernel), inputs)


@pytest.mark.parametrize(
    ("name", "where", "dtype", "tolerance"),
    [
        ("softmax", "left", "float32", 2e-5),
        ("favor+", "right", "float64", 1e-10),
        ("log_weights", "interior", "float32", 2e-5),
        ("unprojected", "different", "float64", 1e-10),
    ],
)
def test_masks(name, where, dtype, tolerance):
    """The last example sees no key: zeros, and gradients of zero."""
    kernel, mask = KERNELS[name](), masks(13)[where]
    inputs = qkv(batch=3, queries=11, keys=13, heads=2, groups=2, dtype=dtype)
    functions = two_passes(kernel, mask), slow(kernel, mask)
    for output_or_gradient in assert_equals(*functions, inputs, tolerance):
        np.testing.assert_array_equal(output_or_gradient[2], 0)


@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_later_keys_that_are_much_larger(name):
    """The running maximum rises by far more than the exponent of a float32."""
    kernel = KERNELS[name]()
    query, key, value = qkv(1, queries=11, keys=13, heads=2, dtype="float32")
    for scales in (np.linspace(0.1, 12, 13), np.linspace(12, 0.1, 13)):
        inputs = query, key * tf.constant(scales[:, None, None], "float32"), value
        assert_equals(two_passes(kernel), slow(kernel), inputs, 1e-4)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_half_precision_keeps_a_float32_state(dtype, tolerance):
    kernel = KERNELS["softmax"]()
    inputs = [tf.cast(x, dtype) for x in qkv(1, 11, 13, heads=2, dtype="float32")]
    found = assert_equals(two_passes(kernel), slow(kernel), inputs, tolerance)
    assert [x.dtype for x in found] == [dtype] * 4
    state = ops.initial_state(1, 2, 22, 7)
    for part in ops.absorb_keys(*inputs[1:], kernel, None, state):
        assert part.dtype == "float32"


def test_the_state_starts_where_earlier_keys_left_it():
    """Gradients reach keys through all later pieces, here of a token each."""
    kernel, inputs = KERNELS["softmax"](), qkv(1, queries=11, keys=13, heads=1)
    assert_equals(two_passes(kernel, pieces=[1] * 13), slow(kernel), inputs)
