"""Near and far keys in one operation: gradients, and the tensors kept for them."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.costs import kept_for_gradients
from tests.ops.cases import HEAD_DIM, normal, pairs, qkv, softmax_kernel
from tests.ops.test_windowed import (
    assert_all_close,
    mask,
    matrix,
    ours,
    with_gradients,
)

WINDOW = 3


def hyperbolic_kernel(half, log_weights):
    matrix = tf.concat([half, -half], 0)
    return ops.ExponentialKernel(matrix, True, log_weights, trainable=True)


# Parameters of a kernel, and a function to the kernel.
TRAINED = {
    "hyperbolic": (
        [tf.cast(pairs(8, HEAD_DIM)[:4], "float64"), normal((8,), 4)],
        hyperbolic_kernel,
    ),
    "favor+": (
        [normal((7, HEAD_DIM), 5)],
        lambda matrix: ops.ExponentialKernel(matrix, trainable=True),
    ),
    "taylor": ([], ops.TaylorKernel),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", sorted(TRAINED))
def test_gradients_of_kernels_are_those_of_the_matrix(name, causal):
    parameters, make = TRAINED[name]
    given, weights = (WINDOW, mask(23), causal), normal((3, 23, 4, 7), 11)
    inputs = [*qkv(3, 23, 23, 2, groups=2), normal((4,), 9), *parameters]

    def attend(query, key, value, gain, *parameters):
        return ours(make(*parameters), *given, 4)(query, key, value, gain)

    def of_matrix(query, key, value, gain, *parameters):
        return matrix(make(*parameters), *given)(query, key, value, gain)

    found = with_gradients(attend, inputs, weights)
    assert_all_close(found, with_gradients(of_matrix, inputs, weights))


@pytest.mark.parametrize(
    "kernel, causal",
    [(softmax_kernel(), True), (softmax_kernel(), False), (ops.TaylorKernel(), True)],
)
def test_tiny_weights_of_near_keys_alone_are_no_overflow(kernel, causal):
    # queries before the visible keys of their block have only near keys, which point
    # against them
    query, _, value = qkv(1, 12, 12, 1, dtype="float32")
    key_mask = np.arange(12)[np.newaxis] >= 5
    inputs = [tf.fill(query.shape, 8.0), tf.fill(query.shape, -8.0), value]
    weights = normal(value.shape, 11, dtype="float32")

    def function(query, key, value):
        visible = ops.Visibility.of(key_mask, causal)
        return ops.windowed_attention(query, key, value, kernel, 2, None, visible)[0]

    found = with_gradients(function, inputs, weights)
    wide = [tf.cast(x, "float64") for x in (*inputs, weights)]
    assert_all_close(found, with_gradients(function, wide[:-1], wide[-1]), 1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_queries_without_far_keys_do_not_move_the_gain(causal):
    inputs = [*qkv(3, 9, 9, 2, dtype="float32"), normal((2,), 9, dtype="float32")]
    # queries with all keys inside a window of five; the others have weight 0
    weights = np.zeros((3, 9, 2, 7), "float32")
    weights[:, slice(0, 5) if causal else 4] = 1.0

    def function(query, key, value, gain):
        visible = ops.Visibility.of(None, causal)
        given = softmax_kernel(), 5, gain, visible
        return ops.windowed_attention(query, key, value, *given)[0]

    *_, dgain = with_gradients(function, inputs, weights)
    np.testing.assert_array_equal(dgain, np.zeros(2))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_one_output_of_each_direction_is_kept(causal):
    batch, length, heads, dim = 1, 4096, 2, 64
    directions = 1 if causal else 2
    kernel = softmax_kernel(64, dim)

    def function(query, key, value):
        visible = ops.Visibility.of(None, causal)
        given = kernel, 64, None, visible
        return ops.windowed_attention(query, key, value, *given)[0]

    kept = kept_for_gradients(function, [(batch, length, heads, dim)] * 3)
    *small, largest = sorted(shape.num_elements() for shape in kept)
    assert largest == directions * batch * length * heads * dim
    assert sum(small) < largest


def test_gains_of_far_weights_that_are_nothing_stay():
    # in float32, the total without near weights is only rounding here
    random = np.random.default_rng(0)
    query, key, value = random.normal(size=(3, 1, 64, 1, 16)).astype("float32")
    matrix = ops.orthogonal_gaussian_matrix(32, 16, (3, 4))
    kernel, gain = ops.ExponentialKernel(matrix), tf.zeros(1)
    gradients = {}
    for size in (1, 12):
        with tf.GradientTape() as tape:
            tape.watch(gain)
            given = size * query, size * key, value, kernel, WINDOW, gain
            output, _ = ops.windowed_attention(*given, ops.Visibility(causal=True))
            loss = tf.reduce_sum(output * value[:, ::-1])
        gradients[size] = float(tape.gradient(loss, gain)[0])
    assert abs(gradients[1]) > 0.1 and gradients[12] == 0


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_window_over_everything_has_gradients_more_than_once(jit_compile):
    """The gain, which then has no effect, gets zeros each time."""
    inputs = [normal((1, 6, 2, HEAD_DIM), seed=i) for i in range(3)]
    gain = tf.zeros(2, "float64")

    @tf.function(jit_compile=jit_compile)
    def gradients(*tensors):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            *near, gain = tensors
            visible = ops.Visibility(causal=True)
            output, _ = ops.windowed_attention(
                *near, softmax_kernel(), 8, gain, key_mask=visible
            )
            loss, other = tf.reduce_sum(output**2), tf.reduce_sum(output[:, 2])
        return [tape.gradient(of, tensors) for of in (loss, other)]

    for found in gradients(*inputs, gain):
        assert all(np.abs(x).max() > 0 for x in found[:3])
        np.testing.assert_array_equal(found[3], np.zeros(2))
