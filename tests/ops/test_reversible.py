"""Residual layers that recompute inputs from outputs: when, and to the bit."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo
from tests.ops.cases import normal

DIM = 5


def change(x, kernel, state):
    return tf.tanh(tf.matmul(x, kernel)), state


def kernels(depth, dtype="float64"):
    return [normal((DIM, DIM), (1, index), dtype=dtype) for index in range(depth)]


def test_nothing_is_computed_again_before_its_gradient_is_there():
    """Otherwise a graph would recompute all layers at once, and keep the results."""
    params = kernels(4)

    @tf.function(autograph=False)
    def step(first, second, upstream):
        graph = tf.compat.v1.get_default_graph()
        _, b, _ = zoo.reversible_chain([change] * 4, first, second, params)
        forward = set(graph.get_operations())
        gradients = tf.gradients(b, [first, second], upstream)
        again = [
            op
            for op in graph.get_operations()
            if op.type in ("Tanh", "MatMul", "BatchMatMulV2") and op not in forward
        ]
        assert len(again) >= 12 and all(waits(op, upstream.op) for op in again)
        return gradients

    step.get_concrete_function(*[tf.TensorSpec((7, 3, DIM), "float64")] * 3)


def waits(op, for_op):
    """Returns `True` if one operation needs the result of another."""
    to_do, seen = [op], set()
    while to_do:
        one = to_do.pop()
        if one is for_op:
            return True
        if one.name not in seen:
            seen.add(one.name)
            to_do += [x.op for x in one.inputs] + list(one.control_inputs)
    return False


def test_params_of_another_number_raise():
    x = normal((2, DIM), 1)
    with pytest.raises(ValueError, match="Received: 2 functions and 1 params"):
        zoo.reversible_chain([change] * 2, x, x, kernels(1))


def test_a_function_of_float32_gets_its_inputs_to_the_bit():
    """Streams in float64 subtract what was added, with errors below float32's."""
    inputs = []

    def function(x, kernel, state):
        x = tf.cast(x, "float32")
        inputs.append(x.numpy())
        return tf.cast(10.0 * tf.tanh(tf.matmul(x, kernel)), "float64"), state

    x = normal((100, DIM), 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a, b, _ = zoo.reversible_chain([function] * 20, x, x, kernels(20, "float32"))
    tape.gradient([a, b], x)
    forward, again = inputs[:20], inputs[20:]
    for one, other in zip(forward, reversed(again), strict=True):
        np.testing.assert_array_equal(one, other)
