"""The exact window against the whole matrix of weights, outputs and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from tests.ops.cases import favor_plus_kernel, normal, qkv, softmax_kernel

KERNELS = {"softmax": softmax_kernel, "favor+": favor_plus_kernel}


def with_gradients(function, inputs, weights):
    """The output, and the gradients of its sum weighted by `weights`."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = function(*inputs)
        loss = tf.reduce_sum(output * weights)
    return [output, *tape.gradient(loss, inputs)]


def assert_all_close(found, expected, tolerance=1e-10):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def mask(length):
    """Masks of three examples: the first keys hidden, some within, and all."""
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


# Tokens, window and tokens of a chunk. Of 4, blocks are of 32: keys of windows of 64
# and 70 stand whole blocks further, and a part of one.
@pytest.mark.parametrize(
    "length, window, chunk, name, masked, causal",
    [
        (1, 1, 16, "softmax", False, True),
        (67, 1, 16, "favor+", True, True),
        (67, 1, 16, "softmax", True, False),
        (67, 200, 16, "softmax", True, True),
        (151, 70, 16, "favor+", True, False),
        (151, 33, 4, "softmax", True, True),
        (151, 70, 4, "softmax", True, False),
    ],
)
def test_outputs_and_gradients_are_those_of_the_matrix(
    length, window, chunk, name, masked, causal
):
    key_mask = mask(length) if masked else None
    given = KERNELS[name](), window, key_mask, causal
    inputs = [*qkv(3, length, length, 2, groups=2), normal((4,), 9)]
    weights = normal((3, length, 4, 7), 11)
    expected = with_gradients(matrix(*given), inputs, weights)
    found = with_gradients(ours(*given, chunk), inputs, weights)
    # no far key: no gradient of the gain
    found = [tf.zeros_like(inputs[3]) if x is None else x for x in found]
    assert_all_close(found, expected)


@pytest.mark.parametrize(
    "size, causal", [(1e30, True), (np.inf, True), (-1e35, False), (3e38, False)]
)
def test_a_hidden_key_of_any_size_is_not_there(size, causal):
    query, key, value = qkv(3, 20, 20, 2, dtype="float32")
    visible = ops.Visibility.of(mask(20), causal)
    weights = normal(query.shape[:3] + value.shape[3:], 5, dtype="float32")

    def attend(*inputs):
        return ops.windowed_attention(*inputs, softmax_kernel(), 4, None, visible)[0]

    huge = query, tf.where(mask(20)[..., None, None], key, size), value
    found, right = (
        with_gradients(attend, x, weights) for x in (huge, (query, key, value))
    )
    for x, y in zip(found, right, strict=True):
        np.testing.assert_array_equal(x, y)


def attended_in_pieces(query, key, value, gain, kernel, window, key_mask, pieces):
    """Both sides, by a pass from the last piece on and one from the first on."""
    whole = query, key, value, key_mask
    parts = list(zip(*(tf.split(x, pieces, 1) for x in whole)))
    empty = ops.initial_state(3, 2, 22, 7, tf.float64)
    empty = ops.with_recent_keys(empty, window, 5, tf.float64)

    def turned(tensors):
        return [tf.reverse(x, [1]) for x in tensors]

    state, later = empty, []
    for part in parts[::-1]:
        *given, seen = turned(part)
        *found, state = ops.attend_to_earlier(
            *given, kernel, window, gain, seen, state, own_key=False
        )
        later.append(turned(found))
    state, outputs = empty, []
    for (*given, seen), further in zip(parts, later[::-1]):
        *found, state = ops.attend_to_earlier(*given, kernel, window, gain, seen, state)
        outputs.append(ops.join_parts(found, further)[0])
    return tf.concat(outputs, 1)


def test_two_directions_in_pieces_are_both_sides_of_the_whole():
    window, kernel, weights = 5, softmax_kernel(), normal((3, 13, 4, 7), 11)
    inputs = [*qkv(3, 13, 13, 2, groups=2), normal((4,), 9)]

    def pieces(*inputs):
        return attended_in_pieces(*inputs, kernel, window, mask(13), (6, 1, 2, 4))

    found = with_gradients(pieces, inputs, weights)
    expected = with_gradients(matrix(kernel, window, mask(13)), inputs, weights)
    assert_all_close(found, expected)


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
