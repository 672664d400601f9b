"""Local attention beside huge keys; layers/test_definitions.py tests its numbers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.ops.cases import qkv, value_and_gradients


def near(causal, window, key_mask=None):
    """Returns local attention, a function of query, key and value."""
    visible = ops.Visibility.of(key_mask, causal)
    return lambda *inputs: ops.local_attention(*inputs, window, visible)[0]


@pytest.mark.parametrize("size, causal", [(1e30, True), (1e6, False), (-1e35, False)])
def test_far_keys_move_nothing_however_large(size, causal):
    query, key, value = qkv(1, 200, 200, 1, dtype="float32")
    attend = near(causal, 10)
    first = tf.range(200)[:, None, None] < 100
    larger = tf.where(first, key, size), tf.where(first, value, 1e6)
    unmoved = 100 if causal else 91
    before, after = attend(query, key, value), attend(query, *larger)
    np.testing.assert_array_equal(before[:, :unmoved], after[:, :unmoved])


@pytest.mark.parametrize(
    "size, causal", [(1e30, True), (np.inf, True), (-1e35, False), (3e38, False)]
)
def test_a_hidden_key_of_any_size_is_not_there(size, causal):
    inputs = query, key, value = qkv(3, 65, 65, 2, groups=2, dtype="float32")
    seen = np.random.default_rng(0).random((3, 65)) < 0.5
    seen[2] = False
    huge = query, tf.where(seen[..., None, None], key, size), value
    attend = near(causal, 5, seen)
    for x, y in zip(*(value_and_gradients(attend, x) for x in (huge, inputs))):
        np.testing.assert_array_equal(x, y)


def test_features_have_no_window():
    given = *qkv(1, 6, 6, 1), ops.TaylorKernel(), ops.Visibility(sliding_window=3)
    state = ops.initial_state(1, 1, 21, 7, tf.float64)
    for call in (
        lambda: ops.causal_attention(*given),
        lambda: ops.bidirectional_attention(*given),
        lambda: ops.absorb_keys(*given[1:], state),
    ):
        with pytest.raises(ValueError, match="sees keys at any distance"):
            call()
