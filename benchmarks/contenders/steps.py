"""Functions that contenders on TensorFlow share: a step's program, and its numbers."""

import importlib.metadata
import typing

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


class Side(typing.NamedTuple):
    """One side's layer in a comparison of `benchmarks.peers`.

    Attributes:
        call: function of x.
        weights: function that returns a dict from names in `numbers.drawn` to
            variables, whose shapes may merge axes. `call` must run before it.
        told: dict of further arrays that the other side needs.
    """

    call: typing.Callable
    weights: typing.Callable
    told: dict = {}


def of_side(case, side):
    """Returns the program of a case; `side(case, arrays or None)` makes its `Side`."""
    if case["part"] == "numbers":
        return lambda: None, lambda: write_numbers(case, side)
    shape = 1, case["length"], case["sizes"]["width"]
    x = tf.random.stateless_normal(shape, seed=(0, 1))
    return program(side(case, None).call, [x], case)


def write_numbers(case, side):
    """Computes a case in a graph; writes output and gradients to its file."""
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
    """Returns trainable variables of Keras 3 layers by name, such as "query/kernel"."""
    return {
        "/".join(weight.path.split("/")[-2:]): weight.value
        for layer in layers
        for weight in layer.trainable_weights
    }


def of_dense(parts):
    """Returns variables of tf-keras dense layers by the names of a dict."""
    return {
        f"{name}/{weight}": getattr(dense, weight)
        for name, dense in parts.items()
        for weight in ("kernel", "bias")
    }
