"""Attention with each of its options beside one definition in NumPy and float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import (
    ExactAttention,
    LinearTransformerAttention,
    LocalAttention,
)
from tests.layers import twins
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, randomize, weights_of
from tests.models.token_models import loss_and_gradients, small_model

LENGTH, GRID = 11, (2, 3, 2)
FEATURES = {"num_random_features": 8, "chunk_size": 3}
KINDS = {
    "exact": (ExactAttention, {}),
    "local": (LocalAttention, {"sliding_window": 3}),
    "elu": (LinearTransformerAttention, {"chunk_size": 3}),
    "features": (PerformerAttention, FEATURES),
    "favor+": (PerformerAttention, {"feature_map": "favor+", **FEATURES}),
    "relu": (PerformerAttention, {"feature_map": "relu", **FEATURES}),
    "square": (PerformerAttention, {"feature_map": "square", **FEATURES}),
    "no projection": (
        PerformerAttention,
        {"feature_map": "sigmoid", "num_random_features": None},
    ),
    "taylor": (PerformerAttention, {"feature_map": "taylor", "chunk_size": 3}),
    "window": (PerformerAttention, {"exact_window": 3, **FEATURES}),
    "taylor, window": (
        PerformerAttention,
        {"exact_window": 3, "feature_map": "taylor"},
    ),
}
MASK = np.stack([np.arange(LENGTH) % 4 != 2, np.arange(LENGTH) < 7])
# an id that comes back is another segment
IDS = np.array([[7] * 3 + [2] + [7] * 5 + [0] * 2, [3] * 9 + [1] * 2])
PLACES = np.random.default_rng(0).integers(0, 10**6, (2, LENGTH))
CALLS = {
    "plain": {},
    "masked": {"key_mask": MASK},
    "packed": {"key_mask": MASK, "segment_ids": IDS},
    "placed": {"key_mask": MASK, "positions": PLACES},
}


def made(kind, **options):
    """A layer of 4 query heads and two key-value heads, with random weights."""
    layer_class, own = KINDS[kind]
    common = dict(num_key_value_heads=2, value_dim=5, seed=1, dtype="float64")
    layer = layer_class(4, 12, **{**common, **own, **options})
    layer.build((2, None, 8))
    randomize(layer, std=0.4)
    return layer


@pytest.mark.parametrize(
    ("kind", "options", "call"),
    [
        ("exact", "causal forget_gate", "packed"),
        ("exact", "forget_gate qk_norm", "masked"),
        ("exact", "grid", "plain"),
        ("local", "causal forget_gate rotary", "packed"),
        ("local", "forget_gate", "plain"),
        ("local", "qk_norm", "packed"),
        ("elu", "causal forget_gate", "packed"),
        ("elu", "qk_norm", "masked"),
        ("features", "causal forget_gate", "masked"),
        ("features", "forget_gate", "packed"),
        ("features", "causal rotary", "placed"),
        ("features", "grid", "packed"),
        ("favor+", "causal qk_norm", "packed"),
        ("favor+", "", "masked"),
        ("relu", "causal", "packed"),
        ("relu", "", "packed"),
        ("square", "causal forget_gate", "plain"),
        ("no projection", "", "masked"),
        ("taylor", "causal qk_norm", "packed"),
        ("window", "causal forget_gate", "packed"),
        ("window", "forget_gate", "masked"),
        ("window", "rotary qk_norm", "placed"),
        ("taylor, window", "causal grid", "packed"),
    ],
)
def test_outputs_gradients_and_scores_are_those_of_the_definition(kind, options, call):
    given = dict.fromkeys(options.split(), True)
    if given.pop("grid", False):
        given["rotary"] = GRID
    layer, x = made(kind, **given), normal((2, LENGTH, 8), 1, dtype="float64")
    # the gain of far keys is float32, and the scale of queries and keys
    tolerance = 1e-6 if "window" in kind or "qk_norm" in options else 1e-9
    twin = twins.attention(layer)
    assert_is_twin(layer, twin, [x], tolerance, scores=True, **CALLS[call])


@pytest.mark.parametrize("kind", ["exact", "elu", "features", "relu"])
def test_keys_and_values_of_another_sequence(kind):
    layer = made(kind)
    inputs = [normal((2, length, 8), length) for length in (5, LENGTH, LENGTH)]
    for given in (inputs, inputs[:2]):
        assert_is_twin(layer, twins.attention(layer), given, key_mask=MASK)


def test_far_positions_are_as_right_as_near_ones():
    """10^6 and more, spread so far that every frequency of a small head matters."""
    layer, x = made("exact", rotary=True, dtype="float32"), normal((2, LENGTH, 8), 1)
    steps = np.random.default_rng(0).integers(1, 10**7, (2, LENGTH))
    for positions in (10**6 + np.arange(LENGTH)[None], 10**6 + np.cumsum(steps, 1)):
        expected = twins.attention(layer)(weights_of(layer), x, positions=positions)
        np.testing.assert_allclose(layer(x, positions=positions), expected, atol=3e-6)


def test_the_definition_is_that_of_keras():
    layer, x = made("exact", value_dim=12), normal((2, LENGTH, 8), 1, dtype="float64")
    expected = keras.layers.GroupQueryAttention(12, 4, 2, dtype="float64")
    expected.build(x.shape, x.shape)
    expected.set_weights(layer.get_weights())
    found = twins.attention(layer)(weights_of(layer), x)
    np.testing.assert_allclose(found, expected(x, x), atol=1e-7)


def test_features_far_below_rounding_count():
    """1 + elu(x) is 0 in float32 from x = -17 on."""
    layer, x = made("elu", dtype="float32"), normal((2, LENGTH, 8), 1)
    bias = layer.key_dense.bias
    bias.assign(tf.fill(bias.shape, -30.0))
    expected = twins.attention(layer)(weights_of(layer), x)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_chunks_of_both_sides_of_features_without_a_projection():
    """What a model computes again, in two passes over pieces."""
    attention = LinearTransformerAttention(2, 4, chunk_size=4)
    options = dict(attention=attention, causal=False)
    results = loss_and_gradients(small_model(recompute="block", **options))
    expected = loss_and_gradients(small_model(**options))
    for result, wanted in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
