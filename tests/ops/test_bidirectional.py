"""Bidirectional attention against the reference, and what masks must not change."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import (
    KERNELS,
    assert_all_close,
    assert_equals,
    masks,
    qkv,
    value_and_gradients,
)


def fast(kernel, mask=None):
    return lambda q, k, v: ops.bidirectional_attention(q, k, v, kernel, mask)


def slow(kernel, mask=None):
    return lambda q, k, v: reference.attention(q, k, v, kernel, mask)


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name):
    kernel, mask = KERNELS[name](), masks(13)["different"]
    assert_equals(fast(kernel), slow(kernel), qkv(2, 11, 13, heads=3))
    grouped = qkv(3, 11, 13, heads=2, groups=3)
    found = assert_equals(fast(kernel, mask), slow(kernel, mask), grouped)
    for output_or_gradient in found:  # the last example sees nothing
        np.testing.assert_array_equal(output_or_gradient[2], 0)


@pytest.mark.parametrize("name", ["favor+", "relu"])
def test_outputs_and_gradients_in_float32(name):
    kernel, inputs = KERNELS[name](), qkv(2, 11, 13, heads=3, dtype="float32")
    assert_equals(fast(kernel), slow(kernel), inputs, tolerance=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 13), (13, 1), (31, 2)])
def test_cross_attention_of_any_lengths(queries, keys):
    kernel = KERNELS["softmax"]()
    assert_equals(fast(kernel), slow(kernel), qkv(2, queries, keys, heads=3))


@pytest.mark.parametrize("name, masked", [("softmax", True), ("relu", False)])
def test_lengths_of_several_blocks(name, masked):
    """No block of the implementation is longer than 512 tokens."""
    inputs = qkv(batch=1, queries=523, keys=1031, heads=1)
    matrix = ops.gaussian_matrix(3, 5, (0, 1))
    kernel = ops.ExponentialKernel(matrix)
    if name == "relu":
        kernel = ops.ActivationKernel(matrix, tf.nn.relu, epsilon=0.1)
    mask = np.random.default_rng(0).random((1, 1031)) < 0.7 if masked else None
    assert_equals(fast(kernel, mask), slow(kernel, mask), inputs)


# Every kernel, and a kernel of each kind with every size.
SIZES = [1e30, -1e30, 3e38, np.inf]
KERNELS_AND_SIZES = {
    *zip(KERNELS, itertools.cycle(SIZES)),
    *itertools.product(["favor+", "taylor"], SIZES),
}


@pytest.mark.parametrize("name, size", sorted(KERNELS_AND_SIZES))
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


@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_large_norms_in_float32(name):
    kernel = KERNELS[name]()
    inputs = qkv(1, queries=29, keys=31, heads=2, std=5.0, dtype="float32")
    found = assert_equals(fast(kernel), slow(kernel), inputs, tolerance=2e-4)
    wide = slow(kernel)(*(tf.cast(x, "float64") for x in inputs))
    assert_all_close(found[:1], [wide], 2e-5)


@pytest.mark.parametrize("name", ["softmax", "relu"])
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
        (((1, 3, 1, 5), (1, 5, 1, 5), (1, 5, 1, 7)), "key_mask must .*Received"),
    ],
)
def test_wrong_shapes_are_refused(shapes, message):
    inputs = [tf.zeros(shape) for shape in shapes]
    mask = np.ones((1, 3), bool) if "mask" in message else None
    with pytest.raises(ValueError, match=message):
        ops.bidirectional_attention(*inputs, KERNELS["favor+"](), mask)
