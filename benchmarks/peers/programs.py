"""A layer as a program of `benchmarks.worker`: its numbers, or a step of it to time."""

import typing

import numpy as np
import tensorflow as tf

from benchmarks import tensorflow_programs


class Side(typing.NamedTuple):
    """A layer of one side.

    Attributes:
        call: function of x.
        weights: function, once `call` was called, that returns a dict from names of
            `arrays.drawn` to variables, whose shapes may put axes together.
        told: dict of further arrays that the other side needs.
    """

    call: typing.Callable
    weights: typing.Callable
    told: dict = {}


def program(case, side):
    """What `benchmarks.worker` asks for.

    Args:
        case: dict, as `benchmarks/peers/__init__.py` says.
        side: function of the case and of arrays, `None` for steps, that makes a `Side`.
    """
    if case["part"] == "layer":
        shape = 1, case["length"], case["sizes"]["width"]
        x = tf.random.stateless_normal(shape, seed=(0, 1))
        call = side(case, None).call
        return tensorflow_programs.program(call, [x], case)
    return lambda: None, lambda: write_numbers(case, side)


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
