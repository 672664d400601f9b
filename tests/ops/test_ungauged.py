"""Attention without a gauge: right where it is used, not used where it is wrong."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import bidirectional, blocks, reference
from keras_performer.ops.ungauged import UngaugedKernel, ungauged

from .cases import (
    HEAD_DIM,
    KERNELS,
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


def test_just_inside_every_limit():
    """A key of bias -17.9, sums of exp(15.7), a query whose weights sum to exp(44)."""
    matrix = 8.0 * tf.eye(HEAD_DIM)[:2]
    kernel = ops.ExponentialKernel(tf.concat([matrix, -matrix], 0), hyperbolic=True)
    query, key, value = qkv(2, 11, 13, heads=2, std=0.3, dtype="float32")
    query = replace(query, 10, [5.35, 0, 0, 0, 0])
    key = replace(key, 5, [3.0, 0, 0, 0, 0])
    key = replace(key, 12, [0, 0, 0, 0, 8.94])
    inputs = query, key, value
    assert is_ungauged(kernel, inputs)
    scale = HEAD_DIM**-0.25
    assert 17.8 < scale**2 * 8.94**2 / 2 < 18
    largest_sum = 8 * 3.0 * scale - (3.0 * scale) ** 2 / 2
    assert 13 < largest_sum < 16
    assert 41 < largest_sum + 8 * 5.35 * scale < 45
    actual = value_and_gradients(attention(kernel), inputs)
    assert_all_close(actual, expected(kernel, inputs), 2e-5)


def large_key(token):
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (query, replace(key, token, 6.0), value)


def large_keys():
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (query, 40 * tf.math.l2_normalize(key, -1), value)


def large_query(token):
    query, key, value = qkv(2, 11, 13, heads=2, dtype="float32")
    return softmax_kernel(), (replace(query, token, 90.0), key, value)


def long_rows(factor):
    """A matrix whose rows are so long that features of ordinary keys are large."""
    kernel = ops.ExponentialKernel(factor * pairs(22, HEAD_DIM), hyperbolic=True)
    return kernel, qkv(2, 11, 13, heads=2, dtype="float32")


def opposite():
    """All keys along a row, the last query against it: one of its features is 0."""
    matrix = 8.0 * tf.eye(HEAD_DIM)[:2]
    kernel = ops.ExponentialKernel(tf.concat([matrix, -matrix], 0), hyperbolic=True)
    query, key, value = qkv(1, 11, 13, heads=1, std=0.1, dtype="float32")
    query = replace(query, 10, [-16.5, 0, 0, 0, 0])
    return kernel, (query, key + 2.5 * tf.one_hot(0, HEAD_DIM), value)


MISFITS = {
    "key of the first block": lambda: large_key(0),
    "key of the last block": lambda: large_key(12),
    "all keys": large_keys,
    "query of the first block": lambda: large_query(0),
    "query of the last block": lambda: large_query(10),
    "large sums": lambda: long_rows(6.0),
    "overflow": lambda: long_rows(60.0),
    "underflow of a query": opposite,
}


def assert_computed_with_a_gauge(kernel, inputs, call=lambda function: function):
    assert not is_ungauged(kernel, inputs)
    run = call(lambda *inputs: value_and_gradients(attention(kernel), inputs))
    for one, other in zip(run(*inputs), expected(kernel, inputs), strict=True):
        assert relative_error(one, other) < 1e-4


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_computed_with_a_gauge(name):
    assert_computed_with_a_gauge(*MISFITS[name]())


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", ["query of the last block", "large sums"])
def test_the_same_in_a_graph(name, jit_compile):
    call = functools.partial(tf.function, jit_compile=jit_compile)
    assert_computed_with_a_gauge(*MISFITS[name](), call)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ["query of the last block", "large sums"])
def test_second_derivatives_after_a_try_in_vain(name, graph):
    kernel, inputs = MISFITS[name]()

    def penalty_gradients(attend, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            penalty = sum(tf.nn.l2_loss(x) for x in value_and_gradients(attend, inputs))
        return tape.gradient(penalty, inputs)

    run = functools.partial(penalty_gradients, attention(kernel))
    run = tf.function(run) if graph else run
    slow = functools.partial(reference.attention, kernel=kernel)
    exact = penalty_gradients(slow, *float64(*inputs))
    for one, other in zip(run(*inputs), exact, strict=True):
        assert relative_error(one, other) < 1e-3


@pytest.mark.parametrize(
    ("name", "tries"),
    [("key of the first block", 0), ("query of the first block", 0), ("large sums", 4)],
)
def test_a_hopeless_try_computes_no_block(name, tries, monkeypatch):
    """Thirteen keys are four blocks."""
    blocks_of_keys = []
    features = UngaugedKernel.key_features

    def counted(self, *arguments):
        blocks_of_keys.append(1)
        return features(self, *arguments)

    monkeypatch.setattr(UngaugedKernel, "key_features", counted)
    kernel, inputs = MISFITS[name]()
    ops.bidirectional_attention(*inputs, kernel)
    assert len(blocks_of_keys) == tries


def test_a_masked_key_does_not_decide():
    kernel, (query, key, value) = large_key(0)
    mask = np.ones((2, 13), bool)
    assert not is_ungauged(kernel, (query, key, value), mask)
    mask[0, 0] = False
    assert is_ungauged(kernel, (query, key, value), mask)


def test_a_strategy_has_the_gauge_always():
    kernel, inputs = softmax_kernel(), qkv(2, 11, 13, heads=2)
    assert is_ungauged(kernel, inputs)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert not is_ungauged(kernel, inputs)


def test_kernels_that_it_cannot_stand_for():
    class Own(ops.ExponentialKernel):
        def project_queries(self, x):
            return 2 * super().project_queries(x)

    own = Own(pairs(22, HEAD_DIM), hyperbolic=True)
    others = [make() for name, make in KERNELS.items() if name != "softmax"]
    assert [ungauged(kernel) for kernel in [own, *others]] == [None] * len(KERNELS)
    assert ungauged(softmax_kernel()) is not None
