"""Causal attention to packed sequences is that to each segment alone."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import (
    KERNELS,
    assert_all_close,
    float64,
    normal,
    qkv,
    relative_error,
    value_and_gradients,
)
from .segment_cases import (
    CHUNK,
    FIRSTS,
    LENGTH,
    apart,
    ids,
    starts,
    with_large_keys,
)


def packed(kernel, mask=None, firsts=FIRSTS):
    visible = ops.Visibility(mask, starts=starts(firsts))

    def attend(query, key, value):
        return ops.causal_attention(query, key, value, kernel, visible, None, CHUNK)[0]

    return attend


def alone(kernel, mask=None, firsts=FIRSTS):
    def attend(query, key, value, mask):
        return ops.causal_attention(query, key, value, kernel, mask, None, CHUNK)[0]

    attend = apart(attend, firsts)
    return lambda query, key, value: attend(query, key, value, mask)


def assert_equals_alone(kernel, inputs, tolerance, mask=None):
    found = value_and_gradients(packed(kernel, mask), inputs)
    expected = value_and_gradients(alone(kernel, mask), float64(*inputs))
    assert_all_close(found, expected, tolerance)


def test_starts_are_where_neighbours_differ():
    found = ops.segment_starts([[5, 5, 2, 5], [1, 0, 0, 0]], last_id=[5, 0])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(tf.cast(found, tf.int32), expected)


@pytest.mark.parametrize("name", ["softmax", "hyperbolic_log_weights", "relu"])
def test_outputs_and_gradients(name):
    inputs = qkv(2, LENGTH, LENGTH, heads=2)
    assert_equals_alone(KERNELS[name](), inputs, 1e-10)


@pytest.mark.parametrize("name", ["favor+", "taylor"])
def test_masks_and_grouped_heads(name):
    inputs = qkv(2, LENGTH, LENGTH, heads=2, groups=3)
    mask = np.random.default_rng(0).random((2, LENGTH)) < 0.6
    mask[0, 16:32] = False  # a segment without keys
    assert_equals_alone(KERNELS[name](), inputs, 1e-10, tf.constant(mask))


@pytest.mark.parametrize("name", ["softmax", "taylor"])
def test_outputs_and_gradients_in_float32(name):
    inputs = qkv(2, LENGTH, LENGTH, heads=2, dtype="float32")
    assert_equals_alone(KERNELS[name](), inputs, 1e-5)


def test_rare_chunks(monkeypatch):
    """Chunks with a start in the form that keys seldom need."""
    expected = value_and_gradients(alone(KERNELS["softmax"]()), inputs := given())
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", -1e9)
    found = value_and_gradients(packed(KERNELS["softmax"]()), inputs)
    assert_all_close(found, expected, 1e-10)


def given(std=1.0, dtype="float64"):
    return qkv(2, LENGTH, LENGTH, heads=2, groups=2, std=std, dtype=dtype)


@pytest.mark.parametrize("size", [30.0, 1e4])
@pytest.mark.parametrize("where", [9, 10, 33, 60])
def test_large_keys_of_another_segment_change_nothing(where, size):
    """Not outputs, not gradients: in float32, where they would lose all others."""
    inputs = given(dtype="float32")
    large = ids() == 99
    for row, first in zip(large, FIRSTS):
        if where in first:
            row[where : min(i for i in (*first, LENGTH) if i > where)] = True
    assert large.any()
    attend = packed(KERNELS["softmax"]())
    scaled, plain, others = with_large_keys(attend, inputs, large, size)
    for found, expected in zip(scaled, plain):
        assert relative_error(found * others, expected * others) < 2e-6
    for gradient in scaled[1:]:
        np.testing.assert_array_equal(gradient * (1 - others), 0)


@pytest.mark.parametrize("name", ["softmax", "relu"])
@pytest.mark.parametrize("cut", [1, 9, 13, 32, 79])
def test_a_sequence_cut_anywhere(name, cut):
    """At a start, inside a segment, and with a piece of one token."""
    kernel, segment_ids = KERNELS[name](), ids()

    def pieces(query, key, value):
        outputs, state, last = [], None, None
        for piece in (slice(0, cut), slice(cut, LENGTH)):
            visible = ops.Visibility(
                starts=ops.segment_starts(segment_ids[:, piece], last)
            )
            given = (x[:, piece] for x in (query, key, value))
            output, state = ops.causal_attention(*given, kernel, visible, state, CHUNK)
            outputs.append(output)
            last = segment_ids[:, piece][:, -1]
        return tf.concat(outputs, 1)

    found = value_and_gradients(pieces, given())
    assert_all_close(found, value_and_gradients(packed(kernel), given()), 1e-10)


def test_steps_of_one_token():
    kernel, segment_ids, inputs = KERNELS["softmax"](), ids(), given()
    outputs, state, last = [], None, None
    for t in range(20):
        visible = ops.Visibility(
            starts=ops.segment_starts(segment_ids[:, t : t + 1], last)
        )
        token = (x[:, t : t + 1] for x in inputs)
        output, state = ops.causal_attention(*token, kernel, visible, state)
        outputs.append(output)
        last = segment_ids[:, t]
    expected = packed(kernel)(*inputs)[:, :20]
    assert_all_close([tf.concat(outputs, 1)], [expected], 1e-12)


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    kernel, inputs = KERNELS["softmax"](), given(dtype="float32")
    firsts = (0, 70), (0, 66)
    whole, _ = ops.causal_attention(*inputs, kernel, None, None, CHUNK)
    found = packed(kernel, firsts=firsts)(*inputs)
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graphs_of_unknown_sizes_and_xla(jit_compile):
    kernel, inputs = KERNELS["softmax"](), given(dtype="float32")

    def attend(query, key, value, starts):
        inputs, visible = (query, key, value), ops.Visibility(starts=starts)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output, _ = ops.causal_attention(*inputs, kernel, visible, None, CHUNK)
            loss = tf.reduce_sum(output**2)
        return [output, *tape.gradient(loss, inputs)]

    shapes = [tf.TensorSpec((None, None, *x.shape[2:]), x.dtype) for x in inputs]
    shapes.append(tf.TensorSpec((None, None), tf.bool))
    options = {"jit_compile": True} if jit_compile else {"input_signature": shapes}
    compiled = tf.function(attend, **options)
    expected = attend(*inputs, starts())
    assert_all_close(compiled(*inputs, starts()), expected, 5e-6)


def test_starts_of_another_length_are_an_error():
    query, key, value = (normal((1, 5, 1, 4), i) for i in range(3))
    visible = ops.Visibility(starts=tf.zeros((1, 4), tf.bool))
    with pytest.raises(ValueError, match="starts of shape"):
        ops.causal_attention(query, key, value, KERNELS["taylor"](), visible)
    with pytest.raises(ValueError, match="keys of one segment"):
        state = ops.initial_state(1, 1, 15, 4)
        ops.absorb_keys(key, value, KERNELS["taylor"](), visible, state)
