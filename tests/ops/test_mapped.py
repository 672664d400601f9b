"""`tf.vectorized_map` of attention: what runs, and what TensorFlow refuses."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.ops.cases import qkv, softmax_kernel

# Several blocks of keys, the last of them padded.
INPUTS = qkv(3, 1300, 1300, 2, dtype="float32")
KERNEL = softmax_kernel()


def both_sides(query, key, value):
    return ops.bidirectional_attention(query, key, value, KERNEL)


def causal(query, key, value):
    return ops.causal_attention(query, key, value, KERNEL)[0]


def window(query, key, value):
    return ops.windowed_attention(query, key, value, KERNEL, 30)[0]


def mapped(attend, inputs):
    """Each example by itself, all at once."""

    def of_one(example):
        return attend(*(x[tf.newaxis] for x in example))[0]

    return tf.vectorized_map(of_one, inputs)


@pytest.mark.parametrize("attend", [both_sides, causal, window])
def test_mapped_examples_are_those_of_a_batch(attend):
    np.testing.assert_allclose(mapped(attend, INPUTS), attend(*INPUTS), atol=1e-6)


def test_xla_lacks_the_list_that_a_mapped_loop_has():
    with pytest.raises(tf.errors.InvalidArgumentError, match="TensorListReserve"):
        tf.function(mapped, jit_compile=True)(both_sides, INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("attend", [causal])
def test_gradients_inside_of_what_is_mapped(attend):
    def gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(attend(*inputs) ** 2)
        return tape.gradient(loss, inputs)

    found = tf.vectorized_map(
        lambda example: [x[0] for x in gradients(*(x[tf.newaxis] for x in example))],
        INPUTS,
    )
    for x, y in zip(found, gradients(*INPUTS)):
        np.testing.assert_allclose(x, y, atol=1e-5)
