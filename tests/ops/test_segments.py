"""Starts of segments in packed sequences; `test_trunk.py` tests their numbers."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import (
    KERNELS,
    normal,
    qkv,
    relative_error,
    segment_starts,
    softmax_kernel,
)


def test_starts_are_where_neighbours_differ():
    found = ops.segment_starts([[5, 5, 2, 5], [1, 0, 0, 0]], last_id=[5, 0])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(tf.cast(found, tf.int32), expected)


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    given = qkv(2, 80, 80, heads=2, groups=2, dtype="float32")
    attend = functools.partial(ops.causal_attention, *given, softmax_kernel())
    starts = segment_starts(((0, 70), (0, 66)), 80)
    whole, found = (
        attend(ops.Visibility(None, True, starts=x), chunk_size=4)[0]
        for x in (None, starts)
    )
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


def test_starts_of_another_length_are_an_error():
    query, key, value = (normal((1, 5, 1, 4), i) for i in range(3))
    visible = ops.Visibility(starts=tf.zeros((1, 4), tf.bool))
    with pytest.raises(ValueError, match="starts of shape"):
        ops.causal_attention(query, key, value, KERNELS["taylor"](), visible)
    with pytest.raises(ValueError, match="keys of one segment"):
        state = ops.initial_state(1, 1, 15, 4)
        ops.absorb_keys(key, value, KERNELS["taylor"](), visible, state)
