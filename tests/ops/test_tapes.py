"""Causal attention under several tapes in a graph."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks, reference

KERNEL = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(4, 3, (0, 1)))


def fast(x):
    return ops.causal_attention(x, x, x, KERNEL, chunk_size=8)[0]


def slow(x):
    kernel = KERNEL.astype(tf.float64)
    return reference.attention(x, x, x, kernel, causal=True)


def gradient_of_penalty(attention, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(attention(x) ** 2)
        penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    return outer.gradient(penalty, x)


@pytest.mark.slow
def test_second_derivatives_are_those_of_the_whole_matrix(monkeypatch):
    sizes = blocks.ON_CPU._replace(
        min_tokens=16, max_tokens=16, any_batch_tokens=16
    )  # three of them
    monkeypatch.setattr(blocks, "ON_CPU", sizes)
    x = tf.random.stateless_normal((1, 40, 1, 3), (0, 2))
    function = tf.function(gradient_of_penalty, autograph=False)
    found = function(fast, x)
    expected = gradient_of_penalty(slow, tf.cast(x, tf.float64))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)
