"""Attention without a gauge: right where it is used, not used where it is wrong."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import bidirectional, blocks, reference

from .cases import (
    HEAD_DIM,
    assert_all_close,
    float64,
    masks,
    pairs,
    qkv,
    relative_error,
    softmax_kernel,
    value_and_gradients,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_BLOCK_TOKENS", 4)


def attention(kernel, mask=None):
    return lambda q, k, v: ops.bidirectional_attention(q, k, v, kernel, mask)


def expected(kernel, inputs, mask=None):
    return value_and_gradients(
        lambda q, k, v: reference.attention(q, k, v, kernel, mask), float64(*inputs)
    )


def is_ungauged(kernel, inputs, mask=None):
    """Whether the output comes from the kernel without a gauge."""
    mask = None if mask is None else tf.constant(mask)
    run = bidirectional._Bidirectional(*inputs, kernel, mask)
    *_, fits = run.forward(*inputs)
    return bool(fits)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("where", [None, "left", "right", "interior", "different"])
def test_common_sizes_need_no_gauge(where, groups, graph):
    kernel = softmax_kernel()
    mask = None if where is None else masks(13)[where]
    inputs = qkv(3, queries=11, keys=13, heads=2, groups=groups)
    # an example that sees no key has sums of 0, which fit
    assert is_ungauged(kernel, inputs, mask)

    def run(*inputs):
        return value_and_gradients(attention(kernel, mask), inputs)

    run = tf.function(run) if graph else run
    assert_all_close(run(*inputs), expected(kernel, inputs, mask), 1e-10)


@pytest.mark.parametrize("std", [0.1, 1.0, 1.7])
def test_float32(std):
    kernel = softmax_kernel()
    inputs = qkv(2, queries=30, keys=30, heads=2, std=std, dtype="float32")
    assert is_ungauged(kernel, inputs)
    actual = value_and_gradients(attention(kernel), inputs)
    assert_all_close(actual, expected(kernel, inputs), 1e-5)


def replace(x, token, row):
    """x `(B, T, N, D)` with another token, in one example."""
    x = np.array(x)
    x[0, token] = row
    return tf.constant(x)


def large_key(token):
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (query, replace(key, token, 6.0), value)


def large_keys():
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (query, 40 * tf.math.l2_normalize(key, -1), value)


def large_query(token):
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (replace(query, token, 90.0), key, value)


def long_rows(std):
    """Features of short keys that are large, or overflow: long rows of the matrix."""
    kernel = ops.ExponentialKernel(std * pairs(22, HEAD_DIM), hyperbolic=True)
    return kernel, qkv(2, 11, 13, heads=2, dtype="float32")


def opposite():
    """All keys along a row, all queries against it: their features are the smallest."""
    matrix = 8.0 * tf.eye(HEAD_DIM)[:2]
    kernel = ops.ExponentialKernel(tf.concat([matrix, -matrix], 0), hyperbolic=True)
    query, key, value = qkv(1, 11, 13, heads=1, std=0.1, dtype="float32")
    along = tf.one_hot([[[0]]], HEAD_DIM)
    return kernel, (query - 16.5 * along, key + 5.0 * along, value)


MISFITS = {
    "key of the first block": lambda: large_key(0),
    "key of the last block": lambda: large_key(12),
    "all keys": large_keys,
    "query of the first block": lambda: large_query(0),
    "query of the last block": lambda: large_query(10),
    "large sums": lambda: long_rows(6.0),
    "overflow": lambda: long_rows(60.0),
    "underflow of queries": opposite,
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_computed_with_a_gauge(name):
    kernel, inputs = MISFITS[name]()
    assert not is_ungauged(kernel, inputs)
    actual = value_and_gradients(attention(kernel), inputs)
    for one, other in zip(actual, expected(kernel, inputs), strict=True):
        assert relative_error(one, other) < 1e-4
