"""Near and far keys in one operation: gradients, extreme weights, and memory.

`test_trunk.py` tests windows of every size.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from tests.costs import kept_for_gradients
from tests.ops import reference

from .cases import (
    HEAD_DIM,
    assert_equals,
    favor_plus_kernel,
    normal,
    qkv,
    softmax_kernel,
    value_and_gradients,
)

WINDOW = 3


def windowed(kernel, causal=False, window=WINDOW, mask=None, **options):
    """Returns windowed attention, a function of query, key, value and the gain."""
    visible = ops.Visibility.of(mask, causal)

    def attend(query, key, value, gain=None):
        given = query, key, value, kernel, window, gain, visible
        return ops.windowed_attention(*given, **options)[0]

    return attend


def twin(kernel, causal=False, window=WINDOW, mask=None):
    def attend(query, key, value, gain=None):
        options = {"exact_window": window, "log_gain": gain}
        return reference.attention(query, key, value, kernel, mask, causal, **options)

    return attend


@pytest.mark.parametrize(
    "kernel, causal",
    [(softmax_kernel(), True), (softmax_kernel(), False), (ops.TaylorKernel(), True)],
)
def test_tiny_weights_of_near_keys_alone_are_no_overflow(kernel, causal):
    # queries before the visible keys of their block have only near keys, which point
    # against them
    query, _, value = qkv(1, 12, 12, 1, dtype="float32")
    given = kernel, causal, 2, np.arange(12)[np.newaxis] >= 5
    inputs = [tf.fill(query.shape, 8.0), tf.fill(query.shape, -8.0), value]
    assert_equals(windowed(*given), twin(*given), inputs, 2e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_queries_without_far_keys_do_not_move_the_gain(causal):
    # queries with all keys inside a window of five
    alone = slice(0, 5) if causal else 4
    attend = windowed(softmax_kernel(), causal, 5)
    inputs = [*qkv(3, 9, 9, 2, dtype="float32"), normal((2,), 9, dtype="float32")]
    *_, dgain = value_and_gradients(lambda *x: attend(*x)[:, alone], inputs)
    np.testing.assert_array_equal(dgain, np.zeros(2))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_one_output_of_each_direction_is_kept(causal):
    shape, directions = (1, 4096, 2, 64), 1 if causal else 2
    attend = windowed(softmax_kernel(64, 64), causal, 64)
    kept = kept_for_gradients(attend, [shape] * 3)
    *small, largest = sorted(x.num_elements() for x in kept)
    assert largest == directions * np.prod(shape)
    assert sum(small) < largest


def test_gains_of_far_weights_that_are_nothing_stay():
    # in float32, the total without near weights is only rounding here
    random = np.random.default_rng(0)
    query, key, value = random.normal(size=(3, 1, 64, 1, 16)).astype("float32")
    matrix = ops.orthogonal_gaussian_matrix(32, 16, (3, 4))
    attend, gain = windowed(ops.ExponentialKernel(matrix), causal=True), tf.zeros(1)
    gradients = {}
    for size in (1, 12):
        with tf.GradientTape() as tape:
            tape.watch(gain)
            output = attend(size * query, size * key, value, gain)
            loss = tf.reduce_sum(output * value[:, ::-1])
        gradients[size] = float(tape.gradient(loss, gain)[0])
    assert abs(gradients[1]) > 0.1 and gradients[12] == 0


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_window_over_everything_has_gradients_more_than_once(jit_compile):
    """The gain, which then has no effect, gets zeros each time."""
    inputs = [
        *(normal((1, 6, 2, HEAD_DIM), i) for i in range(3)),
        tf.zeros(2, "float64"),
    ]

    @tf.function(jit_compile=jit_compile)
    def gradients(*tensors):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            output = windowed(softmax_kernel(), True, 8)(*tensors)
            loss, other = tf.reduce_sum(output**2), tf.reduce_sum(output[:, 2])
        return [tape.gradient(of, tensors) for of in (loss, other)]

    for found in gradients(*inputs):
        assert all(np.abs(x).max() > 0 for x in found[:3])
        np.testing.assert_array_equal(found[3], np.zeros(2))


@pytest.mark.parametrize(
    "way", ["eager", "unknown shapes", pytest.param("xla", marks=pytest.mark.slow)]
)
def test_far_weights_below_float32s_range_of_near_features_count(way, monkeypatch):
    """Features of far keys are e^-60 as large as those of near keys."""
    sizes = blocks.ON_CPU._replace(min_tokens=16, max_tokens=16)
    monkeypatch.setattr(blocks, "ON_CPU", sizes)
    query, key, value = qkv(1, 40, 40, 1)
    far = 24 * key / tf.norm(key, axis=-1, keepdims=True)
    key = tf.where(np.arange(40)[:, None, None] == 20, 0 * key, far)
    inputs = [query, key, value, tf.constant([120.0], query.dtype)]
    kernel = softmax_kernel()
    right = value_and_gradients(twin(kernel), inputs)
    # without far weights these rows would be averages of a few near values
    visible = ops.Visibility(sliding_window=WINDOW)
    near_alone = ops.exact_attention(query, key, value, visible)
    assert tf.reduce_max(tf.abs(right[0] - near_alone)[:, 19:22]) > 0.5
    attend = windowed(kernel, chunk_size=4, jit_compile=way == "xla")
    if way == "unknown shapes":
        shapes = [tf.TensorSpec((None, None, *x.shape[2:])) for x in inputs[:3]]
        attend = tf.function(attend, input_signature=[*shapes, tf.TensorSpec(1)])
    found = value_and_gradients(attend, [tf.cast(x, tf.float32) for x in inputs])
    for x, y in zip(found, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4 * np.abs(y).max())


def test_states_of_other_operations_raise():
    kernel, inputs = favor_plus_kernel(), qkv(3, 4, 4, 2)
    visible = ops.Visibility(causal=True)
    _, plain = ops.causal_attention(*inputs, kernel, visible)
    _, recent = ops.local_attention(*inputs, 3, visible)
    for state in (plain, recent):
        message = rf"a WindowedState \(running_max, .*of type {type(state).__name__}"
        with pytest.raises(ValueError, match=message):
            ops.windowed_attention(*inputs, kernel, 3, key_mask=visible, state=state)
    with pytest.raises(ValueError, match=r"a Recent \(key, .*of type State"):
        ops.local_attention(*inputs, 3, visible, state=plain)
