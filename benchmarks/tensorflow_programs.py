"""What the contenders on TensorFlow share: threads, and a step as one function."""

import numpy as np
import tensorflow as tf


def start(threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return {"tensorflow": tf.__version__}


def program(function, inputs, case):
    """Functions that trace and run one step; `inputs` are tensors."""
    # builds the layer, and computes nothing
    built = tf.function(function).get_concrete_function(*inputs)
    variables = built.graph.trainable_variables

    def forward(*inputs):
        return function(*inputs)

    def training(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            # not `** 2`: its gradient may be a power, which takes as long as a product
            loss = tf.reduce_sum(tf.square(tf.cast(function(*inputs), tf.float32)))
        return tape.gradient(loss, [*inputs, *variables])

    step = training if case["step"] == "training" else forward
    compiled = tf.function(step, jit_compile=case["mode"] == "xla")

    def run():
        for x in tf.nest.flatten(compiled(*inputs)):
            if x is not None:
                np.asarray(x)  # waits, and copies nothing as `x.numpy()` would

    return lambda: compiled.get_concrete_function(*inputs), run
