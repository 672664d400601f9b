"""Sizes of the tensors of a training step of a layer."""

import tensorflow as tf

from tests import costs


def largest_tensor(layer, shape, **call):
    """Elements of the largest tensor of a call of a layer and of its gradients.

    Args:
        layer: a layer.
        shape: the shape of its input.
        **call: further arguments of the call.
    """
    layer.build(shape)
    weights = layer.trainable_weights

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, **call)))
        return tape.gradient(loss, [x, *(weight.value for weight in weights)])

    return costs.largest_tensor(step, [shape], layer.compute_dtype)
