"""Attention to near keys, against exact attention with a band for a mask."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from tests.ops.cases import qkv, value_and_gradients


def near_and_band(causal, window, key_mask=None, **options):
    """Functions of query, key and value: ours, and the matrix under autodiff."""
    visible = ops.Visibility.of(key_mask, causal)

    def near(*inputs):
        return ops.local_attention(*inputs, window, visible, **options)[0]

    def band(*inputs):
        return ops.exact_attention(*inputs, visible._replace(sliding_window=window))

    return near, band


def hidden(length):
    seen = np.random.default_rng(0).random((3, length)) < 0.5
    seen[2] = False
    return tf.constant(seen)


@pytest.mark.parametrize(
    "length, window, masked, causal",
    [
        (1, 5, False, True),
        (64, 64, True, True),
        (65, 65, False, False),
        (211, 1, True, False),
        (211, 5, True, True),
        (211, 5, False, False),
        (211, 64, False, True),
        (211, 65, True, False),
        (211, 300, True, True),
    ],
)
def test_it_is_exact_attention_in_a_band(length, window, masked, causal):
    inputs = qkv(3, length, length, 2, groups=2)
    key_mask = hidden(length) if masked else None
    both = near_and_band(causal, window, key_mask)
    for got, right in zip(*(value_and_gradients(f, inputs) for f in both), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_several_blocks(causal, monkeypatch):
    """Blocks have few chunks each, and hand on gradients of each other's keys."""
    monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(weights=2**16))
    inputs = qkv(2, 300, 300, 2, std=2.0)
    both = near_and_band(causal, 100)
    for got, right in zip(*(value_and_gradients(f, inputs) for f in both), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal, jit_compile", [(True, False), (False, True)])
def test_unknown_lengths_and_xla(causal, jit_compile):
    near, band = near_and_band(causal, 20)
    inputs = qkv(2, 150, 150, 2, dtype="float32")
    specs = [tf.TensorSpec((None, None, *x.shape[2:]), x.dtype) for x in inputs]
    options = {"jit_compile": True} if jit_compile else {"input_signature": specs}
    found = value_and_gradients(tf.function(near, **options), inputs)
    for x, y in zip(found, value_and_gradients(band, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size, causal", [(1e30, True), (1e6, False), (-1e35, False)])
def test_far_keys_move_nothing_however_large(size, causal):
    query, key, value = qkv(1, 200, 200, 1, dtype="float32")
    near, _ = near_and_band(causal, 10)
    larger = tf.where(tf.range(200)[:, None, None] < 100, key, size)
    values = tf.where(tf.range(200)[:, None, None] < 100, value, 1e6)
    unmoved = 100 if causal else 91
    before, after = near(query, key, value), near(query, larger, values)
    np.testing.assert_array_equal(before[:, :unmoved], after[:, :unmoved])


@pytest.mark.parametrize(
    "size, causal", [(1e30, True), (np.inf, True), (-1e35, False), (3e38, False)]
)
def test_a_hidden_key_of_any_size_is_not_there(size, causal):
    inputs = query, key, value = qkv(3, 65, 65, 2, groups=2, dtype="float32")
    seen = hidden(65)
    huge = query, tf.where(seen[..., None, None], key, size), value
    near, _ = near_and_band(causal, 5, seen)
    found, right = (value_and_gradients(near, x) for x in (huge, inputs))
    for x, y in zip(found, right, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "function", ["causal_attention", "bidirectional_attention", "absorb_keys"]
)
def test_features_have_no_window(function):
    query, key, value = qkv(1, 6, 6, 1)
    kernel = ops.TaylorKernel()
    visible = ops.Visibility(sliding_window=3)
    with pytest.raises(ValueError, match="sees keys at any distance"):
        if function == "absorb_keys":
            state = ops.initial_state(1, 1, 21, 7, tf.float64)
            ops.absorb_keys(key, value, kernel, visible, state)
        else:
            getattr(ops, function)(query, key, value, kernel, visible)
