"""Causal sequences in pieces: prefill, steps, loops, gradients through the state."""

import itertools

import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import KERNELS, assert_all_close, masks, qkv

LENGTH = 23


def in_pieces(kernel, inputs, lengths, mask=None, chunk_size=None):
    """Returns the joined outputs of consecutive pieces, and the last state."""
    outputs, state = [], None
    mask = tf.ones(inputs[0].shape[:2], tf.bool) if mask is None else mask
    for *piece, seen in zip(*(tf.split(x, lengths, 1) for x in (*inputs, mask))):
        output, state = ops.causal_attention(*piece, kernel, seen, state, chunk_size)
        outputs.append(output)
    return tf.concat(outputs, axis=1), state


def by_features(query, key, value, kernel, mask=None, state=None):
    """Returns causal attention, and its last state with a stabilizer of 0."""
    is_log = isinstance(kernel, ops.ExponentialKernel)
    features = reference.log_features if is_log else reference.activation_features
    p, e = features(query, kernel), features(key, kernel)
    if is_log:
        weights = 0.0 if kernel.log_weights is None else kernel.log_weights
        p, e = tf.exp(p), tf.exp(e + tf.cast(weights, e.dtype))
    if mask is not None:
        e = tf.where(mask[..., None, None], e, 0)
    v = tf.concat([value, tf.ones_like(value[..., :1])], -1)
    sums = tf.cumsum(tf.einsum("btkm,btkv->btkvm", e, v), 1)
    if state is not None:
        sums += without_stabilizer(state)[:, None]
    of_queries = tf.repeat(sums, query.shape[2] // key.shape[2], 2)
    output = tf.einsum("btnm,btnvm->btnv", p, of_queries)
    output = tf.math.divide_no_nan(output[..., :-1], output[..., -1:])
    return output, (tf.zeros_like(sums[:, -1, :, 0]), sums[:, -1])


def without_stabilizer(state):
    """Returns `sums * exp(running_max)`, or the sums if there is no running maximum."""
    running_max, sums = state
    scale = tf.where(running_max > -1e29, tf.exp(running_max), 1)
    return sums * scale[:, :, tf.newaxis]


def loss_and_gradients(attend, sources):
    """Returns output, sums, and gradients of later outputs and of sums.

    `attend` returns the output and the state.
    """
    with tf.GradientTape() as tape:
        tape.watch(sources)
        output, state = attend()
        sums = without_stabilizer(state)
        loss = tf.reduce_sum(output[:, 13:] ** 2) + tf.reduce_sum(sums**2)
    return [output, sums, *tape.gradient(loss, sources)]


@pytest.mark.parametrize(
    ("name", "padded"), list(zip(KERNELS, itertools.cycle([False, True])))
)
def test_whole_equals_prefill_and_steps(name, padded):
    """Also compares gradients that reach earlier inputs through the state only."""
    kernel = KERNELS[name]()
    inputs = qkv(batch=3, queries=LENGTH, keys=LENGTH, heads=2, groups=2)
    mask = masks(LENGTH)["different"] if padded else None
    expected = loss_and_gradients(lambda: by_features(*inputs, kernel, mask), inputs)
    for lengths in ([23], [9, 1, 1, 7, *[1] * 5]):
        found = loss_and_gradients(
            lambda: in_pieces(kernel, inputs, lengths, mask, chunk_size=3), inputs
        )
        assert_all_close(found, expected, 1e-10)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_gradient_of_the_sums_of_a_given_state(name):
    kernel = KERNELS[name]()
    query, key, value = qkv(2, 15, 15, heads=2)
    _, state = ops.causal_attention(query, key, value, kernel)
    found, expected = (
        loss_and_gradients(
            lambda: attend(query, -key, value, kernel, state=state), [state[1]]
        )
        for attend in (ops.causal_attention, by_features)
    )
    assert_all_close(found, expected, 1e-10)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_initial_state_changes_nothing_and_is_float32(name):
    kernel = KERNELS[name]()
    inputs = qkv(2, 5, 5, heads=3, groups=2, dtype="bfloat16")
    num_features = kernel.projection_matrix.shape[0]
    initial = ops.initial_state(2, 3, num_features, 7)
    output, state = ops.causal_attention(*inputs, kernel, state=initial)
    for running_max, sums in (initial, state):
        assert running_max.shape == (2, 3, num_features)
        assert sums.shape == (2, 3, 8, num_features)
        assert running_max.dtype == sums.dtype == "float32"
    afresh, _ = ops.causal_attention(*inputs, kernel)
    assert output.dtype == "bfloat16" and bool(tf.reduce_all(output == afresh))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1, 17), (2, 1, 8, 17)),  # another batch size
        ((1, 3, 17), (1, 3, 8, 17)),  # a shape that would broadcast
        ((3, 2, 17), (3, 2, 8, 17)),  # another number of heads
        ((3, 1, 16), (3, 1, 8, 16)),  # another number of features
        ((3, 1, 17), (3, 1, 7, 17)),  # another value size
    ],
)
def test_a_state_of_another_shape_raises(shapes):
    given = *qkv(3, 2, 2, 1), KERNELS["favor+"]()
    state = tuple(tf.zeros(shape, "float64") for shape in shapes)
    with pytest.raises(ValueError, match="state must come from"):
        ops.causal_attention(*given, state=state)
    with pytest.raises(ValueError, match="state must be a tuple"):
        ops.causal_attention(*given, state="x")
