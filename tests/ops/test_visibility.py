"""Keys that operations hide, and those that they cannot: segments, global tokens.

`test_trunk.py` tests the numbers of masks, windows and segments.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops, zoo

from .cases import qkv, relative_error
from .test_trunk import Form

GLOBAL = ops.Visibility(
    global_tokens=tf.constant([[False, False, True, False, False, False]])
)
CAUSAL, NEAR = ops.Visibility(causal=True), ops.Visibility(sliding_window=3)
STARTS = tf.zeros((1, 6), tf.bool)
KERNEL = ops.TaylorKernel()


def test_starts_are_where_neighbours_differ():
    found = ops.segment_starts([[5, 5, 2, 5], [1, 0, 0, 0]], last_id=[5, 0])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(tf.cast(found, tf.int32), expected)


def test_blocks_in_which_no_segment_starts_keep_every_bit():
    form = Form(True, packed=True, chunk=4)
    whole, found = (
        form.ours(firsts=firsts)(*form.inputs())
        for firsts in (((0,), (0,)), ((0, 70), (0, 66)))
    )
    np.testing.assert_array_equal(found[:, :64], whole[:, :64])
    assert relative_error(found[:, 70:], whole[:, 70:]) > 0.1


def test_a_window_does_not_bind_global_tokens():
    mask = tf.constant([[True] * 5 + [False]])
    visible = GLOBAL._replace(key_mask=mask, sliding_window=1)
    expected = np.eye(6, dtype=bool) | (np.arange(6) == 2)
    expected[2] = True
    expected[:, 5] = False
    np.testing.assert_array_equal(visible.matrix(6, 6)[0], expected)
    causal = visible._replace(causal=True).matrix(6, 6)[0]
    np.testing.assert_array_equal(causal, np.tril(expected))
    np.testing.assert_array_equal(visible.rows([2, 4], 6)[0], expected[[2, 4]])


@pytest.mark.parametrize("size, causal", [(1e30, True), (1e6, False), (-1e35, False)])
def test_far_keys_move_nothing_however_large(size, causal):
    query, key, value = qkv(1, 200, 200, 1, dtype="float32")
    visible = ops.Visibility(causal=causal)
    first = tf.range(200)[:, None, None] < 100
    larger = tf.where(first, key, size), tf.where(first, value, 1e6)
    unmoved = 100 if causal else 91
    before, after = (
        ops.local_attention(query, *given, 10, visible)[0]
        for given in ((key, value), larger)
    )
    np.testing.assert_array_equal(before[:, :unmoved], after[:, :unmoved])


def test_a_visibility_takes_the_masks_that_functions_take():
    mask, inputs = [[1, 1, 0, 1, 0]], qkv(1, 5, 5, 1)
    for attention in (
        lambda mask: ops.bidirectional_attention(*inputs, KERNEL, mask),
        lambda mask: ops.causal_attention(*inputs, KERNEL, mask)[0],
        lambda mask: ops.exact_attention(*inputs, mask),
    ):
        np.testing.assert_array_equal(attention(ops.Visibility(mask)), attention(mask))


def all_keys(*heads, visible):
    return ops.bidirectional_attention(*heads, KERNEL, visible)


def earlier(*heads, visible):
    return ops.causal_attention(*heads, KERNEL, visible)


def absorbed(query, key, value, visible):
    state = ops.initial_state(1, 1, 21, 7, "float64")
    return ops.absorb_keys(key, value, KERNEL, visible, state)


def windowed(*heads, visible):
    return ops.windowed_attention(*heads, KERNEL, 2, key_mask=visible)


def local(*heads, visible):
    return ops.local_attention(*heads, 2, visible)


def longformer(*heads, visible):
    return zoo.global_token_attention(*heads, *heads, 2, 1, visible)


@pytest.mark.parametrize(
    "message, attention, visible",
    [
        ("support global", local, GLOBAL),
        ("support global", all_keys, GLOBAL),
        ("support global", windowed, GLOBAL),
        ("support packed sequences", longformer, GLOBAL._replace(starts=STARTS)),
        ("sees keys at any distance", earlier, NEAR),
        ("sees keys at any distance", all_keys, NEAR),
        ("sees keys at any distance", absorbed, NEAR),
        ("absorb_keys.*causal_attention", absorbed, CAUSAL),
        ("bidirectional_attention.*causal_attention", all_keys, CAUSAL),
        ("starts of shape", earlier, ops.Visibility(starts=STARTS[:, 1:])),
        ("keys of one segment", absorbed, ops.Visibility(starts=STARTS)),
    ],
)
def test_what_an_operation_cannot_hide_is_refused(message, attention, visible):
    with pytest.raises(ValueError, match=message):
        attention(*qkv(1, 6, 6, 1), visible=visible)
