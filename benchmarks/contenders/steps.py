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


def program(function, inputs, case):
    """Returns functions that trace and that run one step on tensors `inputs`."""
    # builds the layer without computing anything
    built = tf.function(function).get_concrete_function(*inputs)
    variables = built.graph.trainable_variables

    def forward(*inputs):
        return function(*inputs)

    def training(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            # the gradient of `** 2` may be a power, as slow as a matrix product
            loss = tf.reduce_sum(tf.square(tf.cast(function(*inputs), tf.float32)))
        return tape.gradient(loss, [*inputs, *variables])

    step = training if case["step"] == "training" else forward
    compiled = tf.function(step, jit_compile=case["mode"] == "xla")

    def run():
        for x in tf.nest.flatten(compiled(*inputs)):
            if x is not None:
                np.asarray(x)  # waits; `x.numpy()` would also copy

    return lambda: compiled.get_concrete_function(*inputs), run
