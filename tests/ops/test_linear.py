"""Linear attention in every way and with every kernel, against the reference.

`test_trunk.py` tests windows, segments and gates, with the default blocks.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.conversion.errors import pair_weights
from tests.ops import reference

from .cases import (
    ATTENTIONS,
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

ALL = {**KERNELS, "taylor_of_rank": lambda: ops.TaylorKernel(rank=3)}
# Queries and keys. Blocks have 8 tokens; causal blocks have four chunks of 3.
LENGTHS = {"all": (11, 13), "states": (11, 13), "past": (29, 29)}


def ours(way, kernel, mask=None, **options):
    attend, _ = ATTENTIONS[way]
    return lambda *inputs: attend(*inputs, kernel, mask, **options)


def twin(way, kernel, mask=None):
    _, causal = ATTENTIONS[way]
    return lambda *inputs: reference.attention(*inputs, kernel, mask, causal)


def default(way, kernel, mask=None):
    """Attends with the default blocks and chunks."""
    if way == "past":
        return ours(way, kernel, mask, chunk_size=None)
    return lambda *inputs: ops.bidirectional_attention(*inputs, kernel, mask)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("way", LENGTHS)
def test_outputs_and_gradients_of_every_kernel(way, name):
    kernel, lengths = ALL[name](), LENGTHS[way]
    assert_equals(ours(way, kernel), twin(way, kernel), qkv(2, *lengths, heads=3))
    mask = masks(lengths[1])["different"]
    functions = ours(way, kernel, mask), twin(way, kernel, mask)
    found = assert_equals(*functions, qkv(3, *lengths, heads=2, groups=3))
    for output_or_gradient in found:  # the last example sees nothing
        np.testing.assert_array_equal(output_or_gradient[2], 0)


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 13), (13, 1), (31, 2)])
def test_cross_attention_of_any_lengths(queries, keys):
    kernel = KERNELS["softmax"]()
    inputs = qkv(2, queries, keys, heads=3)
    assert_equals(default("all", kernel), twin("all", kernel), inputs)


@pytest.mark.parametrize(
    "length, chunk_size", [(1, 7), (2, 1), (28, 7), (28, None), (37, 1), (37, 64)]
)
def test_any_length_and_chunk_size(length, chunk_size):
    kernel = KERNELS["softmax"]()
    functions = ours("past", kernel, chunk_size=chunk_size), twin("past", kernel)
    assert_equals(*functions, qkv(2, length, length, heads=3))


@pytest.mark.parametrize("name", ["taylor", "softmax"])
def test_one_chunk_in_float32(name):
    """Some CPUs multiply `(X, 1, tokens, H)` by a matrix wrong, or write beyond it."""
    kernel, inputs = KERNELS[name](), qkv(16, 64, 64, heads=1, dtype="float32")
    functions = default("past", kernel), twin("past", kernel)
    assert_equals(*functions, inputs, tolerance=1e-4)


@pytest.mark.parametrize("way, queries", [("all", 523), ("past", 1031)])
def test_several_blocks_as_long_as_they_get(way, queries):
    """Blocks have at most 512 tokens."""
    kernel = ops.ExponentialKernel(ops.gaussian_matrix(3, 5, (0, 1)))
    mask = np.random.default_rng(0).random((1, 1031)) < 0.7
    inputs = qkv(batch=1, queries=queries, keys=1031, heads=1)
    assert_equals(default(way, kernel, mask), twin(way, kernel, mask), inputs)


# Each kernel with one size, and one kernel of each kind with every size.
SIZES = [1e30, -1e30, 3e38, np.inf]
KERNELS_AND_SIZES = {
    *(("all", *pair) for pair in zip(KERNELS, itertools.cycle(SIZES))),
    *itertools.product(["all"], ["favor+", "taylor"], SIZES),
    *itertools.product(["past"], KERNELS, [1e30]),
}


@pytest.mark.parametrize("way, name, size", sorted(KERNELS_AND_SIZES))
def test_a_masked_key_of_any_size_equals_a_small_one(way, name, size):
    """The mask is a log-feature, which products of a huge key exceed."""
    mask = np.arange(13)[np.newaxis] != 4
    query, key, value = qkv(1, 13, 13, heads=2, dtype="float32")
    found, expected = (
        value_and_gradients(
            ours(way, KERNELS[name](), mask),
            (query, tf.where(mask[..., np.newaxis, np.newaxis], key, one), value),
        )
        for one in (size, 0.1)
    )
    assert_all_close(found, expected, 2e-6)


WIDE_KERNELS = {
    "softmax": lambda: softmax_kernel(32, 16),
    "favor+": lambda: favor_plus_kernel(32, 16),
}


def inputs_of_head_size_16(length=149, std=1.0):
    query, key, value = (
        normal((1, length, 1, dim), (1, dim, i), dtype="float32")
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
    "larger and larger": np.linspace(0.1, 12, 149),
    "smaller and smaller": np.linspace(12, 0.1, 149),
}


@pytest.mark.parametrize(
    "way, name, options, case",
    [
        ("past", "softmax", {"chunk_size": 64}, "lognormal"),
        ("past", "softmax", {"chunk_size": 13}, "key 100 x0, others x5"),
        ("past", "softmax", {"chunk_size": 13}, "masked keys where blocks start"),
        ("past", "favor+", {"chunk_size": 64}, "key 0 x6"),
        ("past", "favor+", {"chunk_size": 13}, "first 70 keys x5"),
        ("states", "softmax", {"pieces": [9, 70, -1]}, "larger and larger"),
        ("states", "favor+", {"pieces": [9, 70, -1]}, "smaller and smaller"),
    ],
)
def test_keys_that_dwarf_others(way, name, options, case):
    """The running maximum of a feature rises by hundreds at one key."""
    query, key, value = inputs_of_head_size_16()
    key *= tf.constant(HARD_CASES[case][:, None, None], "float32")
    mask = POSITION[None] % 52 != 0 if case.startswith("masked") else None
    kernel, inputs = WIDE_KERNELS[name](), (query, key, value)
    functions = ours(way, kernel, mask, **options), twin(way, kernel, mask)
    assert_equals(*functions, inputs, tolerance=2e-5)
    assert_equals(*functions, float64(*inputs))


@pytest.mark.parametrize("dtype, bound", [("bfloat16", 2e-2), ("float16", 3e-3)])
@pytest.mark.parametrize("way", ["all", "past"])
def test_half_precision_returns_its_dtype_and_sums_in_float32(way, dtype, bound):
    """A bfloat16 sum of ones stops at 256, a float16 sum at 2048; 65504 is inf.

    Values have mean 1; rounding of the output must not round its gradient.
    """
    query, key, value = inputs_of_head_size_16(5003, std=0.5)
    attend, inputs = default(way, WIDE_KERNELS["softmax"]()), (query, key, value + 1.0)
    expected = value_and_gradients(attend, inputs)
    halves = [tf.cast(x, dtype) for x in inputs]
    actual = value_and_gradients(attend, halves)
    assert [x.dtype for x in actual] == [dtype] * 4
    assert_all_close(actual, expected, bound)
    late = slice(4800, None)
    assert relative_error(actual[0][:, late], expected[0][:, late]) < bound
    output = attend(*halves[:2], tf.fill(value.shape, tf.constant(500.0, dtype)))
    np.testing.assert_array_equal(tf.cast(output, "float32"), 500)


@pytest.mark.parametrize(
    "kernel",
    [
        *(KERNELS[name]() for name in ("favor+", "softmax", "log_weights", "taylor")),
        ops.ExponentialKernel(normal((3, 10, 5), 3)),  # a matrix for each head
    ],
)
def test_weights_of_pairs_are_those_of_the_features(kernel):
    query, key, _ = qkv(2, 5, 7, heads=3, groups=2, std=5.0)
    weights, log_scale = pair_weights(query, key, kernel)
    factors, logs, _ = reference.pair_weights(query, key, kernel)
    expected = np.log(factors) + logs
    np.testing.assert_allclose(np.log(weights) + log_scale, expected, atol=1e-10)


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


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match=r"one key for each query.* Received"):
        ops.causal_attention(*qkv(1, 5, 3, heads=1), KERNELS["favor+"]())


@pytest.mark.parametrize("window, chunk_size", [(None, 0), (None, True), (3, 2.5)])
def test_a_chunk_size_that_is_no_positive_int_is_refused(chunk_size, window):
    inputs, options = qkv(1, 3, 3, heads=1), {"chunk_size": chunk_size}
    attend = ops.causal_attention
    if window:
        attend, options = ops.windowed_attention, options | {"exact_window": window}
    message = f"chunk_size must be .*Received: chunk_size={chunk_size}"
    with pytest.raises(ValueError, match=message):
        attend(*inputs, KERNELS["favor+"](), **options)
