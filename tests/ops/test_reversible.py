"""Residual layers that recompute inputs from outputs, against autodiff."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo
from tests.ops.cases import assert_all_close, normal

DIM = 5


def change(x, params, state):
    """Drops half of the numbers by a seed, and advances the seed."""
    bits = tf.random.stateless_uniform(
        tf.shape(x), state, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    scale = tf.cast(params["scale"], x.dtype)
    y = scale * tf.tanh(tf.matmul(x, params["kernel"]))
    return tf.where(bits > 0, y, tf.zeros_like(y)), state + 1


def layers(depth):
    return [
        {"kernel": normal((DIM, DIM), (1, index)), "scale": tf.constant(2 + index)}
        for index in range(depth)
    ]


def plain(functions, first, second, params, state):
    """Computes equations 7 of the paper, with autodiff."""
    for index in range(0, len(functions), 2):
        change, state = functions[index](second, params[index], state)
        first = first + change
        if index + 1 == len(functions):
            return second, first, state
        change, state = functions[index + 1](first, params[index + 1], state)
        second = second + change
    return first, second, state


def with_gradients(chain, depth, **options):
    params, state = layers(depth), tf.constant([3, 4])
    kernels = [one["kernel"] for one in params]

    @tf.function(autograph=False, **options)
    def run(first, second, kernels):
        given = [{**one, "kernel": k} for one, k in zip(params, kernels)]
        with tf.GradientTape() as tape:
            tape.watch([first, second, kernels])
            a, b, end = chain([change] * depth, first, second, given, state)
            loss = tf.reduce_sum(tf.sin(a) + 3.0 * b**2)
        found = tape.gradient(loss, [first, second, kernels])
        return [a, b, end, *tf.nest.flatten(found)]

    return run(normal((7, 3, DIM), 1), normal((7, 3, DIM), 2), kernels)


@pytest.mark.parametrize("depth", [1, 4])
def test_values_and_gradients_are_those_of_autodiff(depth):
    got, expected = (with_gradients(f, depth) for f in (zoo.reversible_chain, plain))
    assert_all_close(got, expected, 1e-11)
    assert got[2].numpy().tolist() == [3 + depth, 4 + depth]
    compiled = with_gradients(zoo.reversible_chain, depth, jit_compile=True)
    assert_all_close(compiled, expected, 1e-11)
    tf.config.run_functions_eagerly(True)
    try:
        eager = with_gradients(zoo.reversible_chain, depth)
    finally:
        tf.config.run_functions_eagerly(False)
    assert_all_close(eager, expected, 1e-11)


def test_nothing_is_computed_again_before_its_gradient_is_there():
    """Otherwise a graph would recompute all layers at once, and keep the results."""
    params, state = layers(4), tf.constant([3, 4])

    @tf.function(autograph=False)
    def step(first, second, upstream):
        graph = tf.compat.v1.get_default_graph()
        _, b, _ = zoo.reversible_chain([change] * 4, first, second, params, state)
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
        zoo.reversible_chain([change] * 2, x, x, layers(1), tf.constant([1, 2]))


def test_a_function_of_float32_gets_its_inputs_to_the_bit():
    """Streams in float64 subtract what was added, with errors below float32's."""
    inputs = []

    def function(x, kernel, state):
        x = tf.cast(x, "float32")
        inputs.append(x.numpy())
        return tf.cast(10.0 * tf.tanh(tf.matmul(x, kernel)), "float64"), state

    kernels = [normal((DIM, DIM), (2, i), dtype="float32") for i in range(20)]
    x = normal((100, DIM), 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a, b, _ = zoo.reversible_chain([function] * 20, x, x, kernels)
    tape.gradient([a, b], x)
    forward, again = inputs[:20], inputs[20:]
    for one, other in zip(forward, reversed(again), strict=True):
        np.testing.assert_array_equal(one, other)
