"""States of pieces merge to the state of the whole, in any bracketing."""

import itertools

import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import HEAD_DIM, KERNELS, assert_all_close, masks, qkv

LENGTH = 13
PIECES = (5, 0, 1, 7)


def whole_and_pieces(name, mask=None, std=1.0):
    """The state of all keys, and those of pieces, each from nothing."""
    kernel = KERNELS[name]()
    _, key, value = qkv(3, 1, LENGTH, heads=2, std=std)
    num_features = kernel.num_features(HEAD_DIM)

    def absorb(here):
        seen = None if mask is None else mask[:, here]
        empty = ops.initial_state(3, 2, num_features, 7, "float64")
        return ops.absorb_keys(key[:, here], value[:, here], kernel, seen, empty)

    ends = itertools.accumulate(PIECES)
    pieces = [absorb(slice(end - n, end)) for n, end in zip(PIECES, ends)]
    return kernel, absorb(slice(None)), pieces


def bracketings(states, merge):
    """The states that every way to bracket their merging gives."""
    if len(states) == 1:
        return states
    return [
        merge(left, right)
        for cut in range(1, len(states))
        for left in bracketings(states[:cut], merge)
        for right in bracketings(states[cut:], merge)
    ]


@pytest.mark.parametrize("mask", [None, "interior"])
@pytest.mark.parametrize("name", KERNELS)
def test_any_bracketing_gives_the_state_of_the_whole(name, mask):
    mask = None if mask is None else tf.constant(masks(LENGTH)[mask])
    kernel, whole, pieces = whole_and_pieces(name, mask)
    merged = bracketings(pieces, lambda *pair: ops.merge_states(kernel, *pair))
    assert len(merged) == 5  # the Catalan number of four pieces
    for state in merged:
        assert_all_close(state, whole, 1e-12)


def test_a_piece_that_dwarfs_the_other_does_not_erase_it():
    """Keys of standard deviation 4: sums whose stabilizers are far apart."""
    kernel, whole, pieces = whole_and_pieces("softmax", std=4.0)
    for state in bracketings(pieces, lambda *pair: ops.merge_states(kernel, *pair)):
        assert_all_close(state, whole, 1e-12)


def test_nothing_is_neutral():
    kernel, whole, _ = whole_and_pieces("favor+")
    nothing = ops.initial_state(3, 2, 17, 7, "float64")
    for pair in ((nothing, whole), (whole, nothing)):
        assert_all_close(ops.merge_states(kernel, *pair), whole, 1e-15)
    empty = ops.merge_states(kernel, nothing, nothing)
    assert_all_close(empty, nothing, 1e-15)
