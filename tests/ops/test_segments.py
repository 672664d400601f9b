"""Packed sequences: each segment is attended to as if it were alone.

`test_trunk.py` has more forms, with the softmax kernel and with exact weights.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import (
    KERNELS,
    assert_all_close,
    assert_equals,
    normal,
    qkv,
    relative_error,
    segment_ids,
    segment_starts,
    value_and_gradients,
)

# In chunks of 4 causal attention takes these 80 tokens in three blocks of 32.
# The first example has segments of one token, several in one chunk, one that starts
# with a chunk and one that starts with a block; the second has one over two blocks.
LENGTH, CHUNK = 80, 4
FIRSTS = (0, 1, 2, 9, 10, 11, 16, 32, 33, 47, 79), (0, 7, 8, 60, 64, 77)
STARTS = segment_starts(FIRSTS, LENGTH)


def signed_kernel():
    """Sums of weights of either sign."""
    return ops.ActivationKernel(ops.gaussian_matrix(3, 5, (0, 5)), tf.nn.tanh)


ALL = {**KERNELS, "signed": signed_kernel}


def linear(kernel):
    def attend(query, key, value, visible, state=None):
        if visible.causal:
            return ops.causal_attention(
                query, key, value, kernel, visible, state, CHUNK
            )
        return ops.bidirectional_attention(query, key, value, kernel, visible), None

    return attend


def packed(attend, causal, mask=None, starts=STARTS):
    visible = ops.Visibility(mask, causal, starts=starts)
    return lambda *inputs: attend(*inputs, visible)[0]


def twin(kernel, causal, mask=None):
    def attend(*inputs):
        given = *inputs, kernel, mask, causal
        return reference.attention(*given, starts=STARTS)

    return attend


def some_masked():
    mask = np.random.default_rng(0).random((2, LENGTH)) < 0.6
    mask[0, 16:32] = False  # a segment without keys
    return tf.constant(mask)


def inputs(dtype="float64", groups=2):
    return qkv(2, LENGTH, LENGTH, heads=2, groups=groups, dtype=dtype)


def test_starts_are_where_neighbours_differ():
    found = ops.segment_starts([[5, 5, 2, 5], [1, 0, 0, 0]], last_id=[5, 0])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(tf.cast(found, tf.int32), expected)


@pytest.mark.parametrize(
    "name, causal, masked, groups",
    [
        ("hyperbolic_log_weights", True, False, 1),
        ("relu", True, False, 2),
        ("favor+", True, True, 3),
        ("taylor", True, True, 2),
        ("favor+", False, False, 1),
        ("signed", False, False, 2),
        ("taylor", False, False, 1),
        ("relu", False, True, 3),
    ],
)
def test_outputs_and_gradients(name, causal, masked, groups):
    kernel, mask = ALL[name](), some_masked() if masked else None
    functions = packed(linear(kernel), causal, mask), twin(kernel, causal, mask)
    # sums of the signed kernel cancel: 1 / sum has been up to 1e4
    tolerance = 1e-7 if name == "signed" else 1e-10
    found = assert_equals(*functions, inputs(groups=groups), tolerance)
    if masked:
        np.testing.assert_array_equal(found[0][0, 16:32], 0)


def test_sums_of_the_signed_kernel_are_negative_too():
    query, key, _ = inputs(groups=1)
    features = [
        tf.tanh(tf.einsum("btnh,mh->btnm", x, tf.cast(matrix, x.dtype)))
        for matrix in [signed_kernel().projection_matrix]
        for x in (query, key)
    ]
    sums = tf.einsum("btnm,bsnm->btn", *features)
    assert 0.2 < np.mean(sums < 0) < 0.8


def test_rare_chunks(monkeypatch):
    """Chunks with a start in the form that keys seldom need."""
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", -1e9)
    kernel = KERNELS["softmax"]()
    assert_equals(packed(linear(kernel), True), twin(kernel, True), inputs())


@pytest.mark.parametrize(
    "causal, where, size",
    [
        (True, 9, 30.0),
        (True, 10, 1e4),
        (True, 33, 1e4),
        (True, 60, 30.0),
        (False, 33, 30.0),
        (False, 60, 1e4),
    ],
)
def test_large_keys_of_another_segment_change_nothing(causal, where, size):
    """Not outputs, not gradients: in float32, where they would lose all others."""
    large = np.zeros((2, LENGTH), bool)
    for row, first in zip(large, FIRSTS):
        if where in first:
            row[where : min(i for i in (*first, LENGTH) if i > where)] = True
    assert large.any()
    query, key, value = inputs("float32")
    scale = np.where(large, size, 1.0)[..., None, None]
    others = tf.constant(~large[..., None, None], "float32")
    attend = packed(linear(KERNELS["softmax"]()), causal)
    scaled, plain = (
        value_and_gradients(lambda *x: attend(*x) * others, (query, given, value))
        for given in (key * scale, key)
    )
    for found, expected in zip(scaled, plain):
        assert relative_error(found * others, expected * others) < 2e-6
    if causal:
        for gradient in scaled[1:]:
            np.testing.assert_array_equal(gradient * (1 - others), 0)


@pytest.mark.parametrize("name, cuts", [("softmax", (1, 13, 32)), ("relu", (9, 79))])
def test_a_sequence_cut_anywhere(name, cuts):
    """At starts and inside a segment."""
    attend = linear(KERNELS[name]())
    ids = segment_ids(FIRSTS, LENGTH)

    def pieces(*inputs):
        outputs, state, last = [], None, None
        for start, stop in zip((0, *cuts), (*cuts, LENGTH)):
            own = ids[:, start:stop]
            visible = ops.Visibility(causal=True, starts=ops.segment_starts(own, last))
            given = (x[:, start:stop] for x in inputs)
            output, state = attend(*given, visible, state)
            outputs.append(output)
            last = own[:, -1]
        return tf.concat(outputs, 1)

    assert_equals(pieces, twin(KERNELS[name](), True), inputs())


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    attend, given = linear(KERNELS["softmax"]()), inputs("float32")
    whole = packed(attend, True, starts=None)(*given)
    starts = segment_starts(((0, 70), (0, 66)), LENGTH)
    found = packed(attend, True, starts=starts)(*given)
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


@pytest.mark.parametrize("length", [1, 2])
def test_short_bidirectional_sequences(length):
    given = qkv(2, length, length, heads=2)
    starts = segment_starts(((0,), (0, 1)), 2)[:, :length]
    attend = linear(KERNELS["favor+"]())
    found = packed(attend, False, starts=starts)(*given)
    whole = packed(attend, False, starts=None)(*given)
    assert_all_close([found[:1]], [whole[:1]], 1e-12)
    assert_all_close([found[1:]], [given[2][1:]], 1e-12)


@pytest.mark.slow
def test_compiled_alone():
    """Bidirectional, as two causal loops."""

    def attend(query, key, value, visible):
        options = KERNELS["softmax"](), visible
        given = query, key, value, *options
        return ops.bidirectional_attention(*given, jit_compile=True), None

    found = value_and_gradients(packed(attend, False), inputs("float32"))
    plain = packed(linear(KERNELS["softmax"]()), False)
    assert_all_close(found, value_and_gradients(plain, inputs("float32")), 5e-6)


def test_starts_of_another_length_are_an_error():
    query, key, value = (normal((1, 5, 1, 4), i) for i in range(3))
    visible = ops.Visibility(starts=tf.zeros((1, 4), tf.bool))
    with pytest.raises(ValueError, match="starts of shape"):
        ops.causal_attention(query, key, value, KERNELS["taylor"](), visible)
    with pytest.raises(ValueError, match="keys of one segment"):
        state = ops.initial_state(1, 1, 15, 4)
        ops.absorb_keys(key, value, KERNELS["taylor"](), visible, state)
