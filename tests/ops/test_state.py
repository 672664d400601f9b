"""A causal sequence in pieces: prefill, steps, loops, gradients through the state."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import KERNELS, assert_all_close, masks, qkv, relative_error

LENGTH = 23


def in_pieces(kernel, inputs, lengths, mask=None, chunk_size=None, state=None):
    """Outputs of consecutive pieces, joined, and the last state."""
    outputs, start = [], 0
    for length in lengths:
        piece = slice(start, start + length)
        output, state = ops.causal_attention(
            *(x[:, piece] for x in inputs),
            kernel,
            None if mask is None else mask[:, piece],
            state=state,
            chunk_size=chunk_size,
        )
        outputs.append(output)
        start += length
    assert start == inputs[0].shape[1]
    return tf.concat(outputs, axis=1), state


def without_stabilizer(state):
    """Sums that the state stands for: `sums * exp(running_max)`."""
    running_max, sums = state
    return sums * tf.exp(running_max)[:, :, tf.newaxis]


@pytest.mark.parametrize(
    ("name", "padded"), list(zip(KERNELS, itertools.cycle([False, True])))
)
def test_whole_equals_prefill_and_steps(name, padded):
    kernel = KERNELS[name]()
    inputs = qkv(batch=3, queries=LENGTH, keys=LENGTH, heads=2, groups=2)
    mask = masks(LENGTH)["different"] if padded else None
    expected, expected_state = reference.recurrent_attention(*inputs, kernel, mask)
    expected = [expected, without_stabilizer(expected_state)]
    for lengths in ([23], [9, 1, 1, 7, *[1] * 5]):
        output, state = in_pieces(kernel, inputs, lengths, mask, chunk_size=3)
        assert_all_close([output, without_stabilizer(state)], expected, 1e-10)


def test_pieces_with_keys_that_dwarf_others():
    """Keys of norms 20 and 0.5 in turn: the running maximum jumps in many pieces."""
    kernel = KERNELS["softmax"]()
    query, key, value = qkv(1, LENGTH, LENGTH, heads=2, std=1.0, dtype="float64")
    scale = np.where(np.arange(LENGTH) // 5 % 2, 0.2, 10.0)
    key *= scale[None, :, None, None]
    expected, (expected_max, expected_sums) = reference.recurrent_attention(
        query, key, value, kernel
    )
    for dtype, bound in (("float64", 1e-10), ("float32", 2e-5)):
        inputs = [tf.cast(x, dtype) for x in (query, key, value)]
        for lengths in ([8, 1, 1, 1, 12],):
            output, (running_max, sums) = in_pieces(kernel, inputs, lengths)
            shift = tf.exp(tf.cast(running_max, "float64") - expected_max)
            sums = tf.cast(sums, "float64") * shift[:, :, tf.newaxis]
            assert_all_close([output, sums], [expected, expected_sums], bound)


def test_a_state_after_masked_tokens_only_is_empty():
    kernel = KERNELS["softmax"]()
    inputs = qkv(1, 5, 5, heads=2, dtype="float32")
    nothing = np.zeros((1, 5), bool)
    output, state = ops.causal_attention(*inputs, kernel, nothing)
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_array_equal(state[1], 0)
    continued, _ = ops.causal_attention(*inputs, kernel, state=state)
    afresh, _ = ops.causal_attention(*inputs, kernel)
    np.testing.assert_array_equal(continued, afresh)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_initial_state_changes_nothing_and_has_the_documented_shapes(name):
    kernel = KERNELS[name]()
    query, key, value = qkv(2, 5, 5, heads=3, groups=2, dtype="bfloat16")
    num_features = kernel.projection_matrix.shape[0]
    initial = ops.initial_state(2, 3, num_features, 7)
    output, state = ops.causal_attention(query, key, value, kernel, state=initial)
    for running_max, sums in (initial, state):
        assert running_max.shape == (2, 3, num_features)
        assert sums.shape == (2, 3, 8, num_features)
        assert running_max.dtype == sums.dtype == "float32"
    assert output.dtype == "bfloat16"
    afresh, _ = ops.causal_attention(query, key, value, kernel)
    assert bool(tf.reduce_all(output == afresh))


@pytest.mark.parametrize(
    ("name", "padded"), [("softmax", True), ("log_weights", False), ("relu", True)]
)
def test_gradients_through_the_state(name, padded):
    """Loss of the later outputs and of the last state, back to the earlier inputs."""
    kernel = KERNELS[name]()
    inputs = qkv(batch=3, queries=LENGTH, keys=LENGTH, heads=2, groups=2)
    mask = masks(LENGTH)["different"] if padded else None

    def loss(output, state):
        return tf.reduce_sum(output**2) + tf.reduce_sum(without_stabilizer(state) ** 2)

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, state = reference.recurrent_attention(*inputs, kernel, mask)
        expected = loss(output[:, 13:], state)
    expected = tape.gradient(expected, inputs)
    for lengths in ([23], [13, 1, 3, 6]):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output, state = in_pieces(kernel, inputs, lengths, mask, chunk_size=3)
            actual = loss(output[:, 13:], state)
        assert_all_close(tape.gradient(actual, inputs), expected, 1e-10)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_gradient_of_the_sums_of_a_given_state(name):
    kernel = KERNELS[name]()
    query, key, value = qkv(2, 11, 11, heads=2)
    _, (running_max, sums) = ops.causal_attention(query, key, value, kernel)

    def gradient(attention):
        with tf.GradientTape() as tape:
            tape.watch(sums)
            output, state = attention(
                query, -key, value, kernel, state=(running_max, sums)
            )
            loss = tf.reduce_sum(output**2) + tf.reduce_sum(
                without_stabilizer(state) ** 2
            )
        return [tape.gradient(loss, sums)]

    expected = gradient(reference.recurrent_attention)
    assert_all_close(gradient(ops.causal_attention), expected, 1e-10)


@pytest.mark.parametrize(("name", "jit_compile"), [("softmax", True), ("relu", False)])
def test_the_state_survives_a_while_loop(name, jit_compile):
    kernel = KERNELS[name]()
    num_features = kernel.projection_matrix.shape[0]
    inputs = qkv(2, 11, 11, heads=2, groups=2, dtype="float32")
    mask = tf.constant(masks(11)["left"][:2])

    @tf.function(jit_compile=jit_compile)
    def decode(query, key, value, mask):
        def step(t, state, outputs):
            token = [x[:, t, tf.newaxis] for x in (query, key, value)]
            seen = mask[:, t, tf.newaxis]
            output, state = ops.causal_attention(*token, kernel, seen, state=state)
            return t + 1, state, outputs.write(t, output[:, 0])

        outputs = tf.TensorArray("float32", size=11, element_shape=(2, 4, 7))
        start = (tf.constant(0), ops.initial_state(2, 2, num_features, 7), outputs)
        _, state, outputs = tf.while_loop(lambda t, *_: t < 11, step, start)
        return tf.transpose(outputs.stack(), (1, 0, 2, 3)), state

    output, state = decode(*inputs, mask)
    expected, expected_state = ops.causal_attention(*inputs, kernel, mask)
    assert relative_error(output, expected) < 3e-6
    actual = [without_stabilizer(state)]
    assert_all_close(actual, [without_stabilizer(expected_state)], 3e-6)


def test_half_precision_pieces_keep_a_float32_state():
    kernel = KERNELS["softmax"]()
    inputs = qkv(1, 301, 301, heads=2, dtype="bfloat16")
    whole, _ = ops.causal_attention(*inputs, kernel)
    output, state = in_pieces(kernel, inputs, [200, 60] + [1] * 41)
    assert [x.dtype for x in state] == ["float32"] * 2
    difference = tf.cast(output, "float32") - tf.cast(whole, "float32")
    assert np.abs(difference).max() < 2e-2


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1, 17), (2, 1, 8, 17)),  # of another batch size
        ((1, 3, 17), (1, 3, 8, 17)),  # one that would broadcast
        ((3, 2, 17), (3, 2, 8, 17)),  # of other heads
        ((3, 1, 16), (3, 1, 8, 16)),  # of other features
        ((3, 1, 17), (3, 1, 7, 17)),  # of another value size
    ],
)
def test_a_state_of_another_shape_raises(shapes):
    inputs = qkv(3, 2, 2, 1)
    state = tuple(tf.zeros(shape, "float64") for shape in shapes)
    with pytest.raises(ValueError, match="state must come from"):
        ops.causal_attention(*inputs, KERNELS["favor+"](), state=state)
    with pytest.raises(ValueError, match="state must be a tuple"):
        ops.causal_attention(*inputs, KERNELS["favor+"](), state="x")
