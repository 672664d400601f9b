"""Windows over packed sequences are windows over each segment alone."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks

from .cases import (
    KERNELS,
    assert_all_close,
    normal,
    qkv,
    relative_error,
    value_and_gradients,
)
from .segment_cases import apart, ids, starts

# Chunks of windows are of 64 tokens. Segments are shorter and longer than the window.
LENGTH, WINDOW = 150, 5
FIRSTS = (0, 1, 9, 12, 64, 149), (0, 70, 75, 76)


def local(query, key, value, visible, state=None):
    return ops.local_attention(query, key, value, WINDOW, visible, state=state)


def windowed(query, key, value, visible, state=None):
    kernel, gain = KERNELS["softmax"](), normal((query.shape[2],), 5)
    options = kernel, WINDOW, gain, visible, state, 4
    return ops.windowed_attention(query, key, value, *options)


def exact(query, key, value, visible, state=None):
    return ops.exact_attention(query, key, value, visible), None


ATTENTIONS = {"local": local, "windowed": windowed, "exact": exact}


def packed(attention, causal, mask=None):
    visible = ops.Visibility(mask, causal, starts=starts(FIRSTS, LENGTH))
    return lambda *inputs: ATTENTIONS[attention](*inputs, visible)[0]


def alone(attention, causal, mask=None):
    def attend(query, key, value, mask):
        visible = ops.Visibility(mask, causal)
        return ATTENTIONS[attention](query, key, value, visible)[0]

    attend = apart(attend, FIRSTS)
    return lambda query, key, value: attend(query, key, value, mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_outputs_and_gradients(attention, causal, masked, monkeypatch):
    """In several blocks of few chunks, with grouped heads."""
    monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(weights=2**15))
    inputs = qkv(2, LENGTH, LENGTH, heads=2, groups=2)
    mask = None
    if masked:
        mask = tf.constant(np.random.default_rng(0).random((2, LENGTH)) < 0.6)
    found = value_and_gradients(packed(attention, causal, mask), inputs)
    expected = value_and_gradients(alone(attention, causal, mask), inputs)
    assert_all_close(found, expected, 1e-10)


@pytest.mark.parametrize("cuts", [(1, 9), (11, 13, 14), (66, 67), (71, 74, 76, 149)])
@pytest.mark.parametrize("attention", ["local", "windowed"])
def test_a_sequence_cut_anywhere(attention, cuts):
    """At starts, less than a window after them, and in pieces of one token."""
    segment_ids = ids(FIRSTS, LENGTH)

    def pieces(*inputs):
        outputs, state, last = [], None, None
        for start, stop in zip((0, *cuts), (*cuts, LENGTH)):
            own = segment_ids[:, start:stop]
            visible = ops.Visibility(causal=True, starts=ops.segment_starts(own, last))
            given = (x[:, start:stop] for x in inputs)
            output, state = ATTENTIONS[attention](*given, visible, state)
            outputs.append(output)
            last = own[:, -1]
        return tf.concat(outputs, 1)

    inputs = qkv(2, LENGTH, LENGTH, heads=2)
    found = value_and_gradients(pieces, inputs)
    expected = value_and_gradients(packed(attention, True), inputs)
    assert_all_close(found, expected, 1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_large_keys_of_another_segment_change_nothing(causal):
    query, key, value = qkv(2, LENGTH, LENGTH, heads=2, dtype="float32")
    large = np.zeros((2, LENGTH), bool)
    large[0, 12:64] = large[1, 75] = True
    scale = np.where(large, 1e4, 1.0)[..., None, None]
    attend = packed("windowed", causal)
    found, expected = (attend(query, k, value)[~large] for k in (key * scale, key))
    assert relative_error(found, expected) < 2e-6
