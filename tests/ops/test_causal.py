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
    assert_equals,
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


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_of_every_kernel(name):
    """29 tokens in chunks of 3: three blocks of four chunks, the last one padded."""
    kernel, mask = KERNELS[name](), masks(29)["different"]
    assert_equals(fast(kernel, None, 3), slow(kernel), qkv(2, 29, 29, heads=3))
    grouped = qkv(3, 29, 29, heads=2, groups=3)
    found = assert_equals(fast(kernel, mask, 3), slow(kernel, mask), grouped)
    for output_or_gradient in found:  # the last example sees nothing
        np.testing.assert_array_equal(output_or_gradient[2], 0)


@pytest.mark.parametrize("name", ["favor+", "relu"])
def test_outputs_and_gradients_in_float32(name):
    kernel, inputs = KERNELS[name](), qkv(2, 29, 29, heads=3, dtype="float32")
    assert_equals(fast(kernel, None, 3), slow(kernel), inputs, tolerance=1e-5)


@pytest.mark.parametrize(
    "length, chunk_size", [(1, 7), (2, 1), (28, 7), (28, None), (37, 1), (37, 64)]
)
def test_any_length_and_chunk_size(length, chunk_size):
    kernel, inputs = KERNELS["softmax"](), qkv(2, length, length, heads=3)
    assert_equals(fast(kernel, None, chunk_size), slow(kernel), inputs)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_default_chunks_over_several_blocks(name):
    """No block of the implementation is longer than 512 tokens."""
    inputs = qkv(batch=1, queries=1031, keys=1031, heads=1)
    matrix = ops.gaussian_matrix(3, 5, (0, 1))
    kernel = ops.ExponentialKernel(matrix)
    if name == "relu":
        kernel = ops.ActivationKernel(matrix, tf.nn.relu, epsilon=0.1)
    mask = np.random.default_rng(0).random((1, 1031)) < 0.7
    assert_equals(fast(kernel, mask), slow(kernel, mask), inputs)


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


WIDE_KERNELS = {
    "softmax": lambda: softmax_kernel(32, 16),
    "favor+": lambda: favor_plus_kernel(32, 16),
    "abs": lambda: ops.ActivationKernel(ops.gaussian_matrix(32, 16, (0, 1)), tf.abs),
}


def inputs_of_head_size_16(length=149, std=1.0, seed=1):
    query, key, value = (
        normal((1, length, 1, dim), (seed, dim, i), dtype="float32")
        for i, dim in enumerate((16, 16, 3))
    )
    return std * query, std * key, value


POSITION = np.arange(149)
HARD_CASES = {
    "key 0 x6": np.where(POSITION == 0, 6, 1),
    "first 70 keys x5": np.where(POSITION < 70, 5, 1),
    "key 100 x0, others x5": np.where(POSITION == 100, 0, 5),
    "lognormal": np.exp(np.random.default_rng(3).standard_normal(149)),
    "masked keys where blocks start": np.where(POSITION % 52 == 1, 0.1, 6),
}


@pytest.mark.parametrize(
    ("name", "chunk_size", "case"),
    [
        ("softmax", 64, "lognormal"),
        ("softmax", 13, "key 100 x0, others x5"),
        ("softmax", 13, "masked keys where blocks start"),
        ("favor+", 64, "key 0 x6"),
        ("favor+", 13, "first 70 keys x5"),
    ],
)
def test_keys_that_dwarf_others(case, name, chunk_size):
    """The running maximum of a feature rises by hundreds at one key."""
    query, key, value = inputs_of_head_size_16()
    key *= tf.constant(HARD_CASES[case][:, None, None], "float32")
    mask = POSITION[None] % 52 != 0 if case.startswith("masked") else None
    kernel, inputs = WIDE_KERNELS[name](), (query, key, value)
    functions = fast(kernel, mask, chunk_size), slow(kernel, mask)
    assert_equals(*functions, inputs, tolerance=2e-5)
    assert_equals(*functions, float64(*inputs))


@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_large_norms_in_float32(name):
    kernel, inputs = WIDE_KERNELS[name](), inputs_of_head_size_16(std=5.0)
    found = assert_equals(fast(kernel), slow(kernel), inputs, tolerance=4e-5)
    assert relative_error(found[0], slow(kernel)(*float64(*inputs))) < 2e-5


@pytest.mark.parametrize("name", ["softmax", "abs"])
def test_norms_of_50_stay_finite(name):
    query, key, value = inputs_of_head_size_16()
    query, key = (50 * tf.math.l2_normalize(x, axis=-1) for x in (query, key))
    attend = fast(WIDE_KERNELS[name](), tf.constant(POSITION[None] >= 5))
    results = value_and_gradients(attend, (query, key, value))
    for output_or_gradient in results:
        assert np.isfinite(output_or_gradient).all()
    np.testing.assert_allclose(results[0][:, 5], value[:, 5], rtol=1e-5)
    assert np.abs(results[0]).max() <= np.abs(value[:, 5:]).max() * (1 + 1e-5)


@functools.cache
def over_8192_tokens(name):
    query, key, value = inputs_of_head_size_16(8192, std=0.5)
    kernel, inputs = WIDE_KERNELS[name](), (query, key, value + 1.0)
    return kernel, inputs, value_and_gradients(fast(kernel), inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_half_precision_over_8192_tokens(dtype, bound):
    """With values of mean 1: what rounds the output must not round its gradient."""
    kernel, inputs, expected = over_8192_tokens("softmax")
    actual = value_and_gradients(fast(kernel), [tf.cast(x, dtype) for x in inputs])
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
    single = fast(kernel)(*(tf.cast(x, "float32") for x in (query, key, value)))
    assert relative_error(results[0][:, late], single[:, late]) < 1e-3


def test_more_queries_than_keys_are_refused():
    query, key, value = qkv(1, queries=5, keys=3, heads=1)
    with pytest.raises(ValueError, match=r"one key for each query.* Received"):
        ops.causal_attention(query, key, value, KERNELS["favor+"]())


@pytest.mark.parametrize("window, chunk_size", [(None, 0), (None, True), (3, 2.5)])
def test_a_chunk_size_that_is_no_positive_int_is_refused(chunk_size, window):
    inputs = *qkv(1, queries=3, keys=3, heads=1), KERNELS["favor+"]()
    with pytest.raises(
        ValueError, match=f"chunk_size must be .*Received: chunk_size={chunk_size}"
    ):
        if window is None:
            ops.causal_attention(*inputs, chunk_size=chunk_size)
        else:
            ops.windowed_attention(*inputs, exact_window=3, chunk_size=chunk_size)
