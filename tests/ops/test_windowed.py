"""Exact windows in graphs and with far keys of tiny features, against the matrix.

`test_trunk.py` tests windows of every size.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from tests.ops import reference
from tests.ops.cases import favor_plus_kernel, normal, qkv, softmax_kernel


def with_gradients(function, inputs, weights):
    """Returns the output, and gradients of its sum weighted by `weights`."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = function(*inputs)
        loss = tf.reduce_sum(output * weights)
    return [output, *tape.gradient(loss, inputs)]


def assert_all_close(found, expected, tolerance=1e-10):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def mask(length):
    """Returns masks of three examples that hide the first keys, some keys, and all."""
    seen = np.ones((3, length), bool)
    seen[0, : length // 3] = False
    seen[1, length // 2 :: 3] = False
    seen[2] = False
    return tf.constant(seen)


def ours(kernel, window, key_mask=None, causal=False, chunk_size=None, **options):
    visible = ops.Visibility.of(key_mask, causal)

    def attend(query, key, value, gain):
        given = query, key, value, kernel, window, gain, visible, None, chunk_size
        return ops.windowed_attention(*given, **options)[0]

    return attend


def matrix(kernel, window, key_mask=None, causal=False):
    def attend(query, key, value, gain):
        options = {"exact_window": window, "log_gain": gain}
        given = query, key, value, kernel, key_mask, causal
        return reference.attention(*given, **options)

    return attend


def far_keys_of_tiny_features():
    """Returns inputs whose far keys have features e^-60 as large as near ones."""
    query, key, value = qkv(1, 40, 40, 1)
    far = 24 * key / tf.norm(key, axis=-1, keepdims=True)
    key = tf.where(np.arange(40)[:, None, None] == 20, 0 * key, far)
    return [query, key, value, tf.constant([120.0], query.dtype)]


@pytest.mark.slow
def test_an_unknown_batch_and_length(monkeypatch):
    """Tests bidirectional attention by features and, for hard inputs, log-sum-exp."""
    sizes = blocks.ON_CPU._replace(min_tokens=16, max_tokens=16)
    monkeypatch.setattr(blocks, "ON_CPU", sizes)
    kernel, weights = softmax_kernel(), normal((3, 40, 1, 7), 11)

    @tf.function(
        input_signature=[
            *(tf.TensorSpec((None, None, 1, dim), tf.float64) for dim in (5, 5, 7)),
            tf.TensorSpec((1,), tf.float64),
            tf.TensorSpec((None, None), tf.bool),
            tf.TensorSpec((None, None, 1, 7), tf.float64),
        ]
    )
    def attend(query, key, value, gain, key_mask, weights):
        inputs = [query, key, value, gain]
        return with_gradients(ours(kernel, 4, key_mask, False, 4), inputs, weights)

    ordinary = [*qkv(3, 40, 40, 1), normal((1,), 9)]
    hard = far_keys_of_tiny_features()
    for inputs, seen in (ordinary, mask(40)), (hard, tf.ones((1, 40), tf.bool)):
        weights_ = weights[: len(seen)]
        found = attend(*inputs, seen, weights_)
        right = with_gradients(matrix(kernel, 4, seen), inputs, weights_)
        assert_all_close(found, right, 1e-10 if inputs is ordinary else 1e-7)


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_far_weights_below_float32s_range_of_near_features_count(jit_compile):
    inputs = query, key, value, _ = far_keys_of_tiny_features()
    kernel, weights = softmax_kernel(), normal((1, 40, 1, 7), 11)
    right = with_gradients(matrix(kernel, 3), inputs, weights)
    # without far weights these rows would be averages of a few near values
    near_alone = ops.exact_attention(
        query, key, value, ops.Visibility(sliding_window=3)
    )
    assert tf.reduce_max(tf.abs(right[0] - near_alone)[:, 19:22]) > 0.5
    inputs = [tf.cast(x, tf.float32) for x in inputs]
    attend = ours(kernel, 3, None, False, 4, jit_compile=jit_compile)
    found = with_gradients(attend, inputs, tf.cast(weights, tf.float32))
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
