"""Causal attention of shapes that are not known, or empty; how many tokens it pads."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.linear.loops import Causal
from keras_performer.ops.linear.near import Reach

from .cases import normal, softmax_kernel, value_and_gradients


def causal(x, starts):
    visible = ops.Visibility(causal=True, starts=starts)
    return ops.causal_attention(x, x, x, softmax_kernel(), visible)[0]


def window(x, starts):
    visible = ops.Visibility(causal=True, starts=starts)
    return ops.windowed_attention(x, x, x, softmax_kernel(), 3, key_mask=visible)[0]


def bidirectional(x, starts):
    visible = ops.Visibility(starts=starts)
    return ops.bidirectional_attention(x, x, x, softmax_kernel(), visible)


def unpacked(x, starts):
    return ops.bidirectional_attention(x, x, x, softmax_kernel())


FORMS = [causal, window, bidirectional]


@pytest.mark.parametrize("attend", FORMS)
def test_packed_sequences_of_an_unknown_length(attend):
    x = normal((2, 23, 2, 5), 1, dtype="float32")
    starts = tf.constant(normal((2, 23), 2) > 1)

    def gradients(x, starts):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = attend(x, starts)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, x)

    shapes = tf.TensorSpec((None, None, 2, 5)), tf.TensorSpec((None, None), tf.bool)
    traced = tf.function(gradients, input_signature=shapes, autograph=False)
    for found, expected in zip(traced(x, starts), gradients(x, starts), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_key_value_head_of_an_unknown_batch_and_length():
    def attend(query, key):
        return ops.windowed_attention(query, key, key, softmax_kernel(), 3)[0]

    query, key = (normal((2, 23, n, 5), n, dtype="float32") for n in (2, 1))
    shapes = [tf.TensorSpec((None, None, n, 5)) for n in (2, 1)]
    traced = tf.function(attend, input_signature=shapes, autograph=False)
    np.testing.assert_allclose(traced(query, key), attend(query, key), atol=1e-6)


@pytest.mark.parametrize(
    "attend, length",
    [(causal, 1), (causal, 600), (window, 70), (bidirectional, 5), (unpacked, 600)],
)
def test_gradients_of_no_examples_in_a_graph(attend, length):
    """TensorFlow dies optimizing a loop over none."""

    @tf.function(autograph=False)
    def gradients(x):
        starts = tf.zeros((0, length), tf.bool)
        return value_and_gradients(lambda x: attend(x, starts), [x])

    for found in gradients(tf.zeros((0, length, 2, 5))):
        assert found.shape == (0, length, 2, 5)


@pytest.mark.parametrize(
    "batch, exact_window, chunk_size",
    [
        (None, 1, None),
        (None, 512, 16),
        (1, 64, 1),
        (1, 1000, None),
        (8, 2048, 16),
        (8, 512, None),
        (8, 1000, 1),
    ],
)
def test_blocks_are_padded_by_less_than_a_block(batch, exact_window, chunk_size):
    found = []

    @tf.function(input_signature=[tf.TensorSpec((batch, 4096, 8, 5))], autograph=False)
    def plan(x):
        options = Reach(exact_window), chunk_size, (None, None)
        gain = tf.zeros((8, 1))
        found.append(Causal(softmax_kernel(), *options, x, x, x, gain))

    plan.get_concrete_function()
    (loops,) = found
    blocks = loops.blocks
    assert 4096 <= blocks.count * blocks.tokens < 4096 + blocks.tokens
    assert blocks.tokens % loops.chunks == blocks.tokens % loops.near.chunk == 0
