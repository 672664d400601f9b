"""Packed sequences: each segment is attended to as if it were alone.

`test_trunk.py` has more forms, lengths, states and large keys of other segments.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.linear_attention import linear_attention

from .cases import (
    KERNELS,
    assert_all_close,
    assert_equals,
    normal,
    qkv,
    relative_error,
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


def packed(kernel, causal, mask=None, starts=STARTS, **options):
    given = kernel, ops.Visibility(mask, causal, starts=starts)
    options["chunk_size"] = CHUNK
    return lambda *inputs: linear_attention(*inputs, *given, **options)[0]


def twin(kernel, causal, mask=None):
    given = kernel, mask, causal
    return lambda *inputs: reference.attention(*inputs, *given, starts=STARTS)


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
    given = ALL[name](), causal, some_masked() if masked else None
    # sums of the signed kernel cancel: 1 / sum has been up to 1e4
    tolerance = 1e-7 if name == "signed" else 1e-10
    found = assert_equals(
        packed(*given), twin(*given), inputs(groups=groups), tolerance
    )
    if masked:
        np.testing.assert_array_equal(found[0][0, 16:32], 0)


def test_rare_chunks(monkeypatch):
    """Chunks with a start in the form that keys seldom need."""
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", -1e9)
    given = KERNELS["softmax"](), True
    assert_equals(packed(*given), twin(*given), inputs())


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    given = inputs("float32")
    whole, found = (
        packed(KERNELS["softmax"](), True, starts=starts)(*given)
        for starts in (None, segment_starts(((0, 70), (0, 66)), LENGTH))
    )
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


@pytest.mark.slow
def test_compiled_alone():
    """Bidirectional, as two causal loops."""
    found, plain = (
        value_and_gradients(
            packed(KERNELS["softmax"](), False, jit_compile=jit_compile),
            inputs("float32"),
        )
        for jit_compile in (True, False)
    )
    assert_all_close(found, plain, 5e-6)


def test_starts_of_another_length_are_an_error():
    query, key, value = (normal((1, 5, 1, 4), i) for i in range(3))
    visible = ops.Visibility(starts=tf.zeros((1, 4), tf.bool))
    with pytest.raises(ValueError, match="starts of shape"):
        ops.causal_attention(query, key, value, KERNELS["taylor"](), visible)
    with pytest.raises(ValueError, match="keys of one segment"):
        state = ops.initial_state(1, 1, 15, 4)
        ops.absorb_keys(key, value, KERNELS["taylor"](), visible, state)
