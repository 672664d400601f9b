"""States of pieces merge to the state of all tokens, in any bracketing; wrong states.

Tests of layers and models begin with the first state.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import HEAD_DIM, KERNELS, assert_all_close, masks, qkv

# Pieces shorter than a window of 4, as long, longer, and empty, in different orders.
ORDERS = [(3, 1, 0, 7), (7, 1, 4, 3), (4, 3, 1, 5)]


def whole_and_pieces(name, pieces, mask=None, window=None, std=1.0):
    """Returns the kernel, the state of all tokens, and `(state, length)` of pieces.

    Each state starts from an empty state.
    """
    kernel, length = KERNELS[name](), sum(pieces)
    inputs = qkv(3, length, length, heads=2, groups=2, std=std)

    def state_of(here):
        seen = None if mask is None else tf.constant(masks(length)[mask])[:, here]
        empty = ops.initial_state(3, 2, kernel.num_features(HEAD_DIM), 7, "float64")
        query, key, value = (x[:, here] for x in inputs)
        if window is None:
            return ops.absorb_keys(key, value, kernel, seen, empty)
        empty = ops.with_recent_keys(empty, window, HEAD_DIM, "float64")
        visible = ops.Visibility.of(seen, causal=True)
        options = {"key_mask": visible, "state": empty}
        return ops.windowed_attention(query, key, value, kernel, window, **options)[1]

    ends = itertools.accumulate(pieces)
    states = [state_of(slice(end - n, end)) for n, end in zip(pieces, ends)]
    return kernel, state_of(slice(None)), list(zip(states, pieces))


def bracketings(states, merge):
    """Returns the merged states of all bracketings."""
    if len(states) == 1:
        return states
    return [
        merge(left, right)
        for cut in range(1, len(states))
        for left in bracketings(states[:cut], merge)
        for right in bracketings(states[cut:], merge)
    ]


def merge_pieces(kernel, left, right):
    (left, left_length), (right, right_length) = left, right
    merged = ops.merge_states(kernel, left, right, right_length)
    return merged, left_length + right_length


@pytest.mark.parametrize(
    "name, window, pieces, mask, std",
    [
        *((name, None, (5, 0, 1, 7), "interior", 1.0) for name in KERNELS),
        # keys that dwarf others: sums whose stabilizers are far apart
        ("softmax", None, (5, 0, 1, 7), None, 4.0),
        ("favor+", 4, ORDERS[0], "different", 1.0),
        ("softmax", 4, ORDERS[1], "left", 1.0),
        ("taylor", 4, ORDERS[2], None, 1.0),
        ("softmax", 1, ORDERS[0], "different", 1.0),  # the window has one key
        ("softmax", 100, ORDERS[0], "different", 1.0),  # the window has every key
    ],
)
def test_any_bracketing_gives_the_state_of_the_whole(name, window, pieces, mask, std):
    """Masked last keys take a slot of the window; missing keys take none."""
    kernel, whole, states = whole_and_pieces(name, pieces, mask, window, std)
    merged = bracketings(states, lambda *pair: merge_pieces(kernel, *pair))
    assert len(merged) == 5  # the Catalan number of four pieces
    for state, length in merged:
        assert length == sum(pieces)
        assert_all_close(state[:4], whole[:4], 1e-12 if window is None else 1e-10)
        np.testing.assert_array_equal(state[4:5], whole[4:5])


def test_recent_keys_merge_without_a_kernel_and_each_example_by_its_length():
    """Tests two examples, whose right pieces have one and three tokens."""

    def recent(rows):
        """Makes `Recent` from lists of keys, negative if hidden, after empty slots."""
        filled = [[0.0] * (4 - len(row)) + row for row in rows]
        key = tf.constant(np.abs(filled)[..., None, None])
        return ops.Recent(key, 10 * key, tf.constant(np.array(filled) > 0))

    left = recent([[1.0, -2.0, 3.0, 4.0], [5.0, 6.0]])
    right = recent([[-7.0], [8.0, 9.0, -10.0]])
    merged = ops.merge_states(None, left, right, tf.constant([1, 3]))
    expected = recent([[-2.0, 3.0, 4.0, -7.0], [6.0, 8.0, 9.0, -10.0]])
    for found, wanted in zip(merged, expected):
        np.testing.assert_array_equal(found, wanted)


def test_gradients_flow_through_what_merging_absorbs():
    kernel = KERNELS["softmax"]()
    query, key, value = qkv(3, 9, 9, heads=2)
    visible = ops.Visibility(causal=True)

    def run(start, stop, key, value, state=None):
        given = (x[:, start:stop] for x in (query, key, value))
        return ops.windowed_attention(*given, kernel, 3, key_mask=visible, state=state)

    def gradients(state_of):
        with tf.GradientTape() as tape:
            tape.watch([key, value])
            output, _ = run(7, 9, key, value, state_of(key, value))
            loss = tf.reduce_sum(output**2)
        return tape.gradient(loss, [key, value])

    def merged(key, value):
        (_, left), (_, right) = run(0, 5, key, value), run(5, 7, key, value)
        return ops.merge_states(kernel, left, right, 2)

    expected = gradients(lambda key, value: run(0, 7, key, value)[1])
    assert_all_close(gradients(merged), expected, 1e-10)


def test_states_that_do_not_belong_together_raise():
    kernel, whole, _ = whole_and_pieces("favor+", (3, 2), window=4)
    _, other, _ = whole_and_pieces("favor+", (3, 2), window=5)
    with pytest.raises(ValueError, match="need right_length, .*right_length=None"):
        ops.merge_states(kernel, whole, whole)
    message = r"of equal shapes.*left WindowedState\(.*key=\(3, 4,.*key=\(3, 5,"
    with pytest.raises(ValueError, match=message):
        ops.merge_states(kernel, whole, other, 5)
    with pytest.raises(ValueError, match="kernel must be.*and kernel=None"):
        ops.merge_states(None, whole, whole, 5)
    with pytest.raises(ValueError, match="right State"):
        ops.merge_states(kernel, whole, ops.State(*whole[:2]), 5)
    with pytest.raises(ValueError, match="left of type tuple, right of type dict"):
        ops.merge_states(kernel, tuple(whole), whole._asdict(), 5)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1, 17), (2, 1, 8, 17)),  # another batch size
        ((1, 3, 17), (1, 3, 8, 17)),  # a shape that would broadcast
        ((3, 2, 17), (3, 2, 8, 17)),  # another number of heads
        ((3, 1, 16), (3, 1, 8, 16)),  # another number of features
        ((3, 1, 17), (3, 1, 7, 17)),  # another value size
    ],
)
def test_a_state_of_another_shape_raises(shapes):
    given = *qkv(3, 2, 2, 1), KERNELS["favor+"]()
    state = tuple(tf.zeros(shape, "float64") for shape in shapes)
    with pytest.raises(ValueError, match="state must come from"):
        ops.causal_attention(*given, state=state)
    with pytest.raises(ValueError, match="state must be a tuple"):
        ops.causal_attention(*given, state="x")
