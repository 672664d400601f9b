"""Functions that contenders on TensorFlow share."""

import importlib.metadata

import numpy as np
import tensorflow as tf


def start(threads, *packages):
    """Sets the threads; returns versions of TensorFlow and of the given packages."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"tensorflow": tf.__version__, **versions}


def program(function, *inputs):
    """Returns a function that runs a training step on arrays.

    The step computes the gradients of the inputs and of all weights.
    """
    inputs = [tf.constant(x, tf.float32) for x in inputs]
    # builds the layer without computing anything
    built = tf.function(function).get_concrete_function(*inputs)
    variables = built.graph.trainable_variables

    @tf.function
    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            # the gradient of `** 2` may be a power, as slow as a matrix product
            loss = tf.reduce_sum(tf.square(function(*inputs)))
        return tape.gradient(loss, [*inputs, *variables])

    def run():
        for gradient in step(*inputs):
            if gradient is not None:
                np.asarray(gradient)  # waits; `.numpy()` would also copy

    return run
