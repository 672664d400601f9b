"""Causal attention against the reference, hard numerical cases, and masks."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import (
    KERNELS,
    assert_all_close,
    favor_plus_kernel,
    float64,
    masks,
    normal,
    qkv,
    relative_error,
    softmax_kernel,
    value_and_gradients,
)


def fast(kernel, mask=None, chunk_size=None):
    return lambda q, k, v: ops.causal_attention(
        q, k, v, kernel, mask, chunk_size=chunk_size
    )[0]


def slow(kernel, mask=None):
    return lambda q, k, v: reference.attention(q, k, v, kernel, mask, causal=True)


def assert_equals_reference(
    kernel, inputs, mask=None, chunk_size=None, tolerance=1e-10
):
    actual = value_and_gradients(fast(kernel, mask, chunk_size), inputs)
    expected = value_and_gradients(slow(kernel, mask), float64(*inputs))
    assert_all_close(actual, expected, tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name):
    """29 tokens in chunks of 3: three blocks of four chunks, the last one padded."""
    inputs = qkv(batch=2, queries=29, keys=29, heads=3)
    assert_equals_reference(KERNELS[name](), inputs, chunk_size=3)


@pytest.mark.parametrize("name", ["softmax", "favor+", "relu"])
def test_outputs_and_gradients_in_float32(name):
    inputs = qkv(batch=2, queries=29, keys=29, heads=3, dtype="float32")
    assert_equals_reference(KERNELS[name](), inputs, chunk_size=3, tolerance=1e-5)


@pytest.mark.parametrize("chunk_size", [1, 7, 64, None])
@pytest.mark.parametrize("length", [1, 2, 28, 37])
@pytest.mark.parametrize("name", ["softmax", "square"])
def test_any_length_and_chunk_size(name, length, chunk_size):
    inputs = qkv(batch=2, queries=length, keys=length, heads=3)
    assert_equals_reference(KERNELS[name](), inputs, chunk_size=chunk_size)


@pytest.mark.parametrize("name", ["log_weights", "softmax", "abs"])
def test_grouped_queries(name):
    inputs = qkv(batch=2, queries=29, keys=29, heads=3, groups=5)
    assert_equals_reference(KERNELS[name](), inputs, chunk_size=3)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_default_chunks_over_several_blocks(name):
    """No block of the implementation is longer than 512 tokens."""
    inputs = qkv(batch=1, queries=1031, keys=1031, heads=1)
    kernel = {
        "softmax": lambda: ops.ExponentialKernel(ops.gaussian_matrix(3, 5, (0, 1))),
        "relu": lambda: ops.ActivationKernel(
            ops.gaussian_matrix(3, 5, (0, 1)), tf.nn.relu, epsilon=0.1
        ),
    }[name]()
    mask = np.random.default_rng(0).random((1, 1031)) < 0.7
    assert_equals_reference(kernel, inputs, mask)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("where", masks(29))
@pytest.mark.parametrize("name", ["softmax", "log_weights", "sigmoid"])
def test_masks(name, where, groups):
    inputs = qkv(batch=3, queries=29, keys=29, heads=2, groups=groups)
    mask, kernel = masks(29)[where], KERNELS[name]()
    actual = value_and_gradients(fast(kernel, mask, chunk_size=3), inputs)
    for output_or_gradient in actual:
        np.testing.assert_array_equal(output_or_gradient[2], 0)
    assert_equals_reference(kernel, inputs, mask, chunk_size=3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("where", ["left", "right", "interior"])
@pytest.mark.parametrize("name", ["softmax", "favor+", "relu"])
def test_a_masked_token_equals_no_token(name, where, dtype):
    kernel, mask = KERNELS[name](), masks(29)[where][:1]
    query, key, value = qkv(1, queries=29, keys=29, heads=2, dtype=dtype)
    visible, hidden = np.flatnonzero(mask[0]), np.flatnonzero(~mask[0])
    # whatever is written in masked positions; the loss does not look there
    junk = tf.constant(np.where(mask, 1.0, 30.0)[..., None, None], dtype)

    def padded(q, k, v):
        output = fast(kernel, mask, chunk_size=3)(q, k * junk, v * junk)
        return tf.gather(output, visible, axis=1)

    actual = value_and_gradients(padded, (query, key, value))
    for gradient in actual[1:]:
        np.testing.assert_array_equal(gradient.numpy()[:, hidden], 0)
    actual[1:] = [tf.gather(gradient, visible, axis=1) for gradient in actual[1:]]
    dropped = [tf.gather(x, visible, axis=1) for x in (query, key, value)]
    expected = value_and_gradients(fast(kernel, chunk_size=3), dropped)
    assert_all_close(actual, expected, 1e-12 if dtype == "float64" else 2e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_constant_values_come_back_unchanged(name):
    query, key, value = qkv(2, queries=29, keys=29, heads=2, dtype="float32")
    constant = tf.ones_like(value) * tf.range(1.0, 8.0)
    for key_mask in (None, masks(29)["different"][:2]):
        output = fast(KERNELS[name](), key_mask, chunk_size=3)(query, key, constant)
        sees = np.ones((2, 29), bool) if key_mask is None else key_mask.cumsum(1) > 0
        expected = np.broadcast_to(sees[..., None, None], output.shape)
        np.testing.assert_allclose(output / tf.range(1.0, 8.0), expected, atol=1e-6)


@functools.cache
def compiled(name, chunk_size=None):
    """Outputs and gradients at head size 16 as a graph, `(query, key, value, mask)`."""
    kernel = {
        "softmax": lambda: softmax_kernel(32, 16),
        "favor+": lambda: favor_plus_kernel(32, 16),
        "abs": lambda: ops.ActivationKernel(
            ops.gaussian_matrix(32, 16, (0, 1)), tf.abs
        ),
    }[name]()

    @tf.function
    def function(query, key, value, mask):
        attend = fast(kernel, mask, chunk_size)
        return value_and_gradients(attend, (query, key, value))

    return function, kernel


def inputs_of_head_size_16(length=149, std=1.0, seed=1):
    query, key, value = (
        normal((1, length, 1, dim), (seed, dim, i), dtype="float32")
        for i, dim in enumerate((16, 16, 3))
    )
    return std * query, std * key, value


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [1, 64])
def test_chunk_size_changes_rounding_only(chunk_size):
    inputs = inputs_of_head_size_16()
    mask = tf.constant(np.arange(149)[None] % 11 > 3)
    actual = compiled("softmax", chunk_size)[0](*inputs, mask)
    expected = compiled("softmax")[0](*inputs, mask)
    assert_all_close(actual, expected, 3e-6)


POSITION = np.arange(149)
HARD_CASES = {
    "ordinary": np.ones(149),
    "key 0 x6": np.where(POSITION == 0, 6, 1),
    "first 40 keys x5": np.where(POSITION < 40, 5, 1),
    "first 70 keys x5": np.where(POSITION < 70, 5, 1),
    "key 100 x0, others x5": np.where(POSITION == 100, 0, 5),
    "lognormal": np.exp(np.random.default_rng(3).standard_normal(149)),
    "masked keys where blocks start": np.where(POSITION % 52 == 1, 0.1, 6),
}


@functools.cache
def hard_case(case, name):
    """Inputs and mask of a case, and the outputs and gradients of the reference."""
    query, key, value = inputs_of_head_size_16()
    key *= tf.constant(HARD_CASES[case][:, None, None], "float32")
    mask = POSITION[None] >= 0
    if case.startswith("masked"):
        mask = POSITION[None] % 52 != 0
    attend = slow(compiled(name)[1], mask)
    expected = value_and_gradients(attend, float64(query, key, value))
    return (query, key, value), tf.constant(mask), expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chunk_size"), [("softmax", None), ("softmax", 13), ("favor+", 13)]
)
@pytest.mark.parametrize("case", HARD_CASES)
def test_keys_that_dwarf_others(case, name, chunk_size):
    """The running maximum of a feature rises by hundreds at one key."""
    inputs, mask, expected = hard_case(case, name)
    function, _ = compiled(name, chunk_size)
    assert_all_close(function(*inputs, mask), expected, 2e-5)
    assert_all_close(function(*float64(*inputs), mask), expected, 1e-10)


@pytest.mark.parametrize("name", ["softmax", "favor+"])
@pytest.mark.parametrize(("std", "bound"), [(3.0, 1e-5), (5.0, 2e-5)])
def test_large_norms_in_float32(name, std, bound):
    function, kernel = compiled(name)
    inputs = inputs_of_head_size_16(std=std)
    actual = function(*inputs, tf.ones((1, 149), tf.bool))
    expected = value_and_gradients(slow(kernel), float64(*inputs))
    assert relative_error(actual[0], expected[0]) < bound
    assert_all_close(actual[1:], expected[1:], 2 * bound)


@pytest.mark.parametrize("name", ["softmax", "favor+", "abs"])
def test_norms_of_50_stay_finite(name):
    query, key, value = inputs_of_head_size_16()
    query, key = (50 * tf.math.l2_normalize(x, axis=-1) for x in (query, key))
    results = compiled(name)[0](query, key, value, tf.constant(POSITION[None] >= 5))
    for output_or_gradient in results:
        assert np.isfinite(output_or_gradient).all()
    np.testing.assert_allclose(results[0][:, 5], value[:, 5], rtol=1e-5)
    assert np.abs(results[0]).max() <= np.abs(value[:, 5:]).max() * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-2), ("float16", 3e-3)])
@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_half_precision_over_8192_tokens(name, dtype, bound):
    """With values of mean 1: what rounds the output must not round its gradient."""
    function, _ = compiled(name)
    query, key, value = inputs_of_head_size_16(8192, std=0.5)
    inputs = query, key, value + 1.0
    mask = tf.ones((1, 8192), tf.bool)
    expected = function(*inputs, mask)
    actual = function(*(tf.cast(x, dtype) for x in inputs), mask)
    assert [x.dtype for x in actual] == [dtype] * 4
    assert_all_close(actual, expected, bound)
    late = slice(8000, None)
    assert relative_error(actual[0][:, late], expected[0][:, late]) < bound


@pytest.mark.slow
def test_float16_over_70000_tokens():
    """Longer than float16 can count: a sum of ones stops at 2048, and 65504 is inf."""
    kernel = softmax_kernel(8, 8)

    @tf.function
    def function(*inputs):
        return value_and_gradients(fast(kernel), inputs)

    query, key = (normal((1, 70_000, 1, 8), (0, i), dtype="float16") for i in range(2))
    value = normal((1, 70_000, 1, 1), 2, dtype="float16")
    value = tf.concat([value, tf.ones_like(value)], axis=-1)
    results = function(query, key, value)
    for output_or_gradient in results:
        assert np.isfinite(output_or_gradient).all()
    np.testing.assert_array_equal(results[0][..., 1], 1)
    late = slice(69_000, None)
    single = function(*(tf.cast(x, "float32") for x in (query, key, value)))
    assert relative_error(results[0][:, late], single[0][:, late]) < 1e-3


def test_more_queries_than_keys_are_refused():
    query, key, value = qkv(1, queries=5, keys=3, heads=1)
    with pytest.raises(ValueError, match=r"one key for each query.* Received"):
        ops.causal_attention(query, key, value, KERNELS["favor+"]())


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("chunk_size", [0, 2.5, True])
def test_a_chunk_size_that_is_no_positive_int_is_refused(chunk_size, window):
    inputs = *qkv(1, queries=3, keys=3, heads=1), KERNELS["favor+"]()
    with pytest.raises(
        ValueError, match=f"chunk_size must be .*Received: chunk_size={chunk_size}"
    ):
        if window is None:
            ops.causal_attention(*inputs, chunk_size=chunk_size)
        else:
            ops.windowed_attention(*inputs, exact_window=3, chunk_size=chunk_size)


@pytest.mark.parametrize("name", KERNELS)
def test_a_masked_key_of_any_size_equals_a_small_one(name):
    mask = np.arange(13)[np.newaxis] != 4
    query, key, value = qkv(1, queries=13, keys=13, heads=2, dtype="float32")
    found, expected = (
        value_and_gradients(
            fast(KERNELS[name](), mask, chunk_size=5),
            (query, tf.where(mask[..., np.newaxis, np.newaxis], key, size), value),
        )
        for size in (1e30, 0.1)
    )
    assert_all_close(found, expected, 2e-6)
