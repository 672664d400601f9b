"""Shared by the contenders on TensorFlow: a step as one function, and its numbers."""

import importlib.metadata
import typing

import numpy as np
import tensorflow as tf


def start(threads, *packages):
    """Sets the threads; returns the versions of TensorFlow and of packages."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"tensorflow": tf.__version__, **versions}


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


class Side(typing.NamedTuple):
    """A layer of one side of `benchmarks.peers`.

    Attributes:
        call: function of x.
        weights: function, once `call` was called, that returns a dict from names of
            `numbers.drawn` to variables, whose shapes may put axes together.
        told: dict of further arrays that the other side needs.
    """

    call: typing.Callable
    weights: typing.Callable
    told: dict = {}


def of_side(case, side):
    """The program of a function of the case and of arrays (or `None`) to a `Side`."""
    if case["part"] == "numbers":
        return lambda: None, lambda: write_numbers(case, side)
    shape = 1, case["length"], case["sizes"]["width"]
    x = tf.random.stateless_normal(shape, seed=(0, 1))
    return program(side(case, None).call, [x], case)


def write_numbers(case, side):
    """Computes the case in a graph and writes output and gradients to its file."""
    arrays = dict(np.load(case["inputs"]))
    made = side(case, arrays)
    x, cotangent = (tf.constant(arrays[name]) for name in ("x", "cotangent"))
    tf.function(made.call).get_concrete_function(x)  # makes the weights
    weights = made.weights()
    for name, weight in weights.items():
        weight.assign(arrays[name].reshape(weight.shape))

    @tf.function
    def output_and_gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = made.call(x)
            loss = tf.reduce_sum(output * cotangent)
        return output, tape.gradient(loss, [x, *weights.values()])

    output, gradients = output_and_gradients(x)
    named = {
        f"d {name}": np.reshape(gradient, arrays[name].shape)
        for name, gradient in zip(["x", *weights], gradients)
    }
    np.savez(case["outputs"], output=output, **named, **made.told)


def by_name(*layers):
    """Trainable variables of layers of Keras 3 by their last names: "query/kernel"."""
    return {
        "/".join(weight.path.split("/")[-2:]): weight.value
        for layer in layers
        for weight in layer.trainable_weights
    }


def of_dense(parts):
    """Variables of dense layers of tf-keras by the names that a dict gives them."""
    return {
        f"{name}/{weight}": getattr(dense, weight)
        for name, dense in parts.items()
        for weight in ("kernel", "bias")
    }
