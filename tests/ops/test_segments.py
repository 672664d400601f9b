"""Starts of segments in packed sequences; `test_trunk.py` tests their numbers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.linear_attention import linear_attention

from .cases import (
    KERNELS,
    assert_all_close,
    normal,
    qkv,
    relative_error,
    segment_starts,
    value_and_gradients,
)


def packed(causal, firsts, **options):
    """Returns attention in chunks of 4; if causal, 80 tokens are three blocks of 32."""
    starts = segment_starts(firsts, 80) if firsts else None
    given = KERNELS["softmax"](), ops.Visibility(None, causal, starts=starts)
    options["chunk_size"] = 4
    return lambda *inputs: linear_attention(*inputs, *given, **options)[0]


def test_starts_are_where_neighbours_differ():
    found = ops.segment_starts([[5, 5, 2, 5], [1, 0, 0, 0]], last_id=[5, 0])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(tf.cast(found, tf.int32), expected)


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    given = qkv(2, 80, 80, heads=2, groups=2, dtype="float32")
    whole, found = (packed(True, x)(*given) for x in (None, ((0, 70), (0, 66))))
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


@pytest.mark.slow
def test_compiled_alone():
    """Tests bidirectional attention, which runs two causal loops."""
    given = qkv(2, 80, 80, heads=2, groups=2, dtype="float32")
    firsts = (0, 1, 2, 9, 10, 11, 16, 32, 33, 47, 79), (0, 7, 8, 60, 64, 77)
    found, plain = (
        value_and_gradients(packed(False, firsts, jit_compile=jit_compile), given)
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
