"""Bidirectional attention against the reference, and what masks must not change."""

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
    relative_error,
    value_and_gradients,
)


def fast(kernel, mask=None):
    return lambda q, k, v: ops.bidirectional_attention(q, k, v, kernel, mask)


def slow(kernel, mask=None):
    return lambda q, k, v: reference.attention(q, k, v, kernel, mask)


def assert_equals_reference(kernel, inputs, mask=None, tolerance=1e-10):
    actual = value_and_gradients(fast(kernel, mask), inputs)
    expected = value_and_gradients(slow(kernel, mask), float64(*inputs))
    assert_all_close(actual, expected, tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name):
    inputs = qkv(batch=2, queries=11, keys=13, heads=3)
    assert_equals_reference(KERNELS[name](), inputs)


@pytest.mark.parametrize("name", ["softmax", "favor+", "relu"])
def test_outputs_and_gradients_in_float32(name):
    inputs = qkv(batch=2, queries=11, keys=13, heads=3, dtype="float32")
    assert_equals_reference(KERNELS[name](), inputs, tolerance=1e-5)


@pytest.mark.parametrize("name", ["softmax", "relu"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 13), (13, 1), (31, 2)])
def test_cross_attention_of_any_lengths(name, queries, keys):
    assert_equals_reference(KERNELS[name](), qkv(2, queries, keys, heads=3))


@pytest.mark.parametrize("name", ["log_weights", "softmax", "abs"])
def test_grouped_queries(name):
    inputs = qkv(batch=2, queries=11, keys=13, heads=3, groups=5)
    assert_equals_reference(KERNELS[name](), inputs)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_lengths_of_several_blocks(name, masked):
    """No block of the implementation is longer than 512 tokens."""
    inputs = qkv(batch=1, queries=523, keys=1031, heads=1)
    kernel = {
        "softmax": lambda: ops.ExponentialKernel(ops.gaussian_matrix(3, 5, (0, 1))),
        "relu": lambda: ops.ActivationKernel(
            ops.gaussian_matrix(3, 5, (0, 1)), tf.nn.relu, epsilon=0.1
        ),
    }[name]()
    mask = np.random.default_rng(0).random((1, 1031)) < 0.7 if masked else None
    assert_equals_reference(kernel, inputs, mask)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("where", masks(13))
@pytest.mark.parametrize("name", ["softmax", "log_weights", "sigmoid"])
def test_masks(name, where, groups):
    inputs = qkv(batch=3, queries=11, keys=13, heads=2, groups=groups)
    actual = value_and_gradients(fast(KERNELS[name](), masks(13)[where]), inputs)
    for output_or_gradient in actual:
        np.testing.assert_array_equal(output_or_gradient[2], 0)
    assert_equals_reference(KERNELS[name](), inputs, masks(13)[where])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("where", ["left", "right", "interior"])
@pytest.mark.parametrize("name", ["softmax", "favor+", "relu"])
def test_a_masked_key_equals_no_key(name, where, dtype):
    kernel, mask = KERNELS[name](), masks(13)[where][:1]
    query, key, value = qkv(1, queries=11, keys=13, heads=2, dtype=dtype)
    visible = np.flatnonzero(mask[0])
    # whatever is written in masked positions
    junk = tf.constant(np.where(mask, 1.0, 30.0)[..., None, None], dtype)
    actual = value_and_gradients(fast(kernel, mask), (query, key * junk, value * junk))
    dropped = query, tf.gather(key, visible, axis=1), tf.gather(value, visible, axis=1)
    expected = value_and_gradients(fast(kernel), dropped)
    hidden = np.flatnonzero(~mask[0])
    for gradient in actual[2:]:
        np.testing.assert_array_equal(gradient.numpy()[:, hidden], 0)
    actual[2:] = [tf.gather(gradient, visible, axis=1) for gradient in actual[2:]]
    assert_all_close(actual, expected, 1e-12 if dtype == "float64" else 2e-6)


@pytest.mark.parametrize("size", [1e30, -1e30, 3e38, np.inf])
@pytest.mark.parametrize("name", KERNELS)
def test_a_masked_key_of_any_size_equals_no_key(name, size):
    """The mask is a log-feature, and products of a huge key are above it."""
    kernel, mask = KERNELS[name](), np.arange(13)[np.newaxis] != 4
    query, key, value = qkv(1, queries=11, keys=13, heads=2, dtype="float32")
    key = tf.where(mask[..., np.newaxis, np.newaxis], key, size)
    others = np.flatnonzero(mask[0])
    actual = value_and_gradients(fast(kernel, mask), (query, key, value))
    actual[2:] = [tf.gather(gradient, others, axis=1) for gradient in actual[2:]]
    dropped = query, *(tf.gather(x, others, axis=1) for x in (key, value))
    expected = value_and_gradients(fast(kernel), dropped)
    assert_all_close(actual, expected, 2e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_constant_values_come_back_unchanged(name):
    query, key, value = qkv(2, queries=11, keys=13, heads=2, dtype="float32")
    mask = masks(13)["different"][:2]
    constant = tf.ones_like(value) * tf.range(1.0, 8.0)
    for key_mask in (None, mask):
        output = ops.bidirectional_attention(
            query, key, constant, KERNELS[name](), key_mask
        )
        np.testing.assert_allclose(output / tf.range(1.0, 8.0), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "favor+"])
@pytest.mark.parametrize(("std", "bound"), [(3.0, 1e-5), (5.0, 2e-5)])
def test_large_norms_in_float32(name, std, bound):
    inputs = qkv(1, queries=29, keys=31, heads=2, std=std, dtype="float32")
    actual = value_and_gradients(fast(KERNELS[name]()), inputs)
    expected = value_and_gradients(slow(KERNELS[name]()), float64(*inputs))
    assert relative_error(actual[0], expected[0]) < bound
    assert_all_close(actual[1:], expected[1:], 10 * bound)


@pytest.mark.parametrize("name", ["softmax", "favor+", "relu"])
def test_norms_of_50_stay_finite(name):
    query, key, value = qkv(1, queries=29, keys=31, heads=2, dtype="float32")
    query, key = (50 * tf.math.l2_normalize(x, axis=-1) for x in (query, key))
    mask = np.arange(31)[None] >= 5
    results = value_and_gradients(fast(KERNELS[name](), mask), (query, key, value))
    for output_or_gradient in results:
        assert np.isfinite(output_or_gradient).all()
    assert np.abs(results[0]).max() <= np.abs(value[:, 5:]).max() * (1 + 1e-5)
    assert np.abs(results[0]).max() > 0.1


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_half_precision_returns_its_dtype_and_sums_in_float32(dtype, bound):
    """A bfloat16 sum of ones stops at 256, a float16 sum at 2048.

    With values of mean 1: what rounds the output must not round its gradient.
    """
    query, key, value = qkv(1, 7, keys=5003, heads=2, std=0.5, dtype="float32")
    inputs, kernel = (query, key, value + 1.0), KERNELS["softmax"]()
    expected = value_and_gradients(fast(kernel), inputs)
    halves = [tf.cast(x, dtype) for x in inputs]
    actual = value_and_gradients(fast(kernel), halves)
    assert [x.dtype for x in actual] == [dtype] * 4
    assert_all_close(actual, expected, bound)
    ones = tf.ones_like(halves[2])
    output = ops.bidirectional_attention(*halves[:2], ones, kernel)
    np.testing.assert_array_equal(tf.cast(output, "float32"), 1)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 3, 2), (1, 3, 2, 5), (1, 3, 2, 7)), "query must have shape"),
        (((1, 3, 2, 4), (1, 3, 2, 5), (1, 3, 2, 7)), "same head size"),
        (((1, 3, 3, 5), (1, 3, 2, 5), (1, 3, 2, 7)), "same number of heads"),
        (((1, 3, 2, 5), (1, 3, 2, 5), (1, 4, 2, 7)), "same batch size and length"),
    ],
)
def test_wrong_shapes_are_refused(shapes, message):
    inputs = [tf.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        ops.bidirectional_attention(*inputs, KERNELS["favor+"]())


def test_a_mask_of_the_wrong_length_is_refused():
    inputs = qkv(1, queries=3, keys=5, heads=1)
    with pytest.raises(ValueError, match=r"key_mask must have shape .*Received"):
        ops.bidirectional_attention(*inputs, KERNELS["favor+"](), np.ones((1, 3), bool))
