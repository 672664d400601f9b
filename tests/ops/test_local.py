"""Local attention against exact attention with a band as its mask."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from tests.ops.cases import qkv, value_and_gradients


def near_and_band(causal, window, key_mask=None):
    """Returns functions of query, key, value: ours, and the matrix with autodiff."""
    visible = ops.Visibility.of(key_mask, causal)
    band = visible._replace(sliding_window=window)
    return (
        lambda *inputs: ops.local_attention(*inputs, window, visible)[0],
        lambda *inputs: ops.exact_attention(*inputs, band),
    )


def hidden(length):
    seen = np.random.default_rng(0).random((3, length)) < 0.5
    seen[2] = False
    return tf.constant(seen)


# The last cases have several blocks with few chunks, which pass on gradients of each
# other's keys.
@pytest.mark.parametrize(
    "length, window, masked, causal, weights",
    [
        (1, 5, False, True, None),
        (64, 64, True, True, None),
        (65, 65, False, False, None),
        (211, 1, True, False, None),
        (211, 5, True, True, None),
        (211, 5, False, False, None),
        (211, 64, False, True, None),
        (211, 65, True, False, None),
        (211, 300, True, True, None),
        (300, 100, False, True, 2**16),
        (300, 100, False, False, 2**16),
    ],
)
def test_it_is_exact_attention_in_a_band(
    length, window, masked, causal, weights, monkeypatch
):
    if weights:
        small = blocks.ON_CPU._replace(weights=weights)
        monkeypatch.setattr(blocks, "ON_CPU", small)
    inputs = qkv(3, length, length, 2, groups=2)
    both = near_and_band(causal, window, hidden(length) if masked else None)
    for found, right in zip(*(value_and_gradients(f, inputs) for f in both)):
        np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size, causal", [(1e30, True), (1e6, False), (-1e35, False)])
def test_far_keys_move_nothing_however_large(size, causal):
    query, key, value = qkv(1, 200, 200, 1, dtype="float32")
    near, _ = near_and_band(causal, 10)
    first = tf.range(200)[:, None, None] < 100
    larger = tf.where(first, key, size), tf.where(first, value, 1e6)
    unmoved = 100 if causal else 91
    before, after = near(query, key, value), near(query, *larger)
    np.testing.assert_array_equal(before[:, :unmoved], after[:, :unmoved])


@pytest.mark.parametrize(
    "size, causal", [(1e30, True), (np.inf, True), (-1e35, False), (3e38, False)]
)
def test_a_hidden_key_of_any_size_is_not_there(size, causal):
    inputs = query, key, value = qkv(3, 65, 65, 2, groups=2, dtype="float32")
    seen = hidden(65)
    huge = query, tf.where(seen[..., None, None], key, size), value
    near, _ = near_and_band(causal, 5, seen)
    for x, y in zip(*(value_and_gradients(near, x) for x in (huge, inputs))):
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
