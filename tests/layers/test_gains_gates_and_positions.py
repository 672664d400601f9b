"""Options of attention: gains of far keys, forget gates, scales and positions.

`test_definitions.py` tests their formulas.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, zoo
from keras_performer.conversion import (
    approximation_report,
    convert_attention,
    convert_to_performer,
    convert_to_softmax,
)
from keras_performer.layers import ExactAttention, PerformerDecoder
from tests.layers.inputs import normal, output_and_gradients
from tests.layers.twins import randomize

GRID = (2, 3, 2)
PLACES = np.stack(np.unravel_index(np.arange(12), GRID), -1)[None]
TAYLOR = {"feature_map": "taylor"}
X = normal((2, 12, 8), 1)


def made(kind=PerformerAttention, random=True, **options):
    """Returns a layer of 4 heads of size 12, with two query heads per key head."""
    layer = kind(4, 12, num_key_value_heads=2, seed=1, **options)
    layer.build((2, None, 8))
    if random:
        randomize(layer)
    return layer


# -- The gain of keys outside a window.


def test_the_gain_is_what_it_was_made_with_and_can_be_set():
    layer = PerformerAttention(3, 5, exact_window=3, initial_log_gain=(-4.0, 2, 0))
    layer.build((None, None, 8))
    np.testing.assert_allclose(layer.log_gain, [-4.0, 2.0, 0.0], rtol=1e-6)
    # the weight is a tenth, so it trains ten times as fast; older files have it, too
    weight = next(w for w in layer.weights if w.path.endswith("far_gain/log_gain"))
    np.testing.assert_allclose(weight, [-0.4, 0.2, 0.0], rtol=1e-6)
    layer.assign_log_gain([1.0, -1.0, 0.5])
    np.testing.assert_allclose(layer.log_gain, [1.0, -1.0, 0.5], rtol=1e-6)
    layer.assign_log_gain(-2)
    np.testing.assert_allclose(layer.log_gain, [-2.0] * 3, rtol=1e-6)
    one = PerformerAttention(3, 5, exact_window=3, initial_log_gain=-3.0)
    plain = PerformerAttention(3, 5)
    for each in (one, plain):
        each.build((None, None, 8))
    np.testing.assert_allclose(one.log_gain, [-3.0] * 3, rtol=1e-6)
    assert plain.log_gain is None


# -- The forget gate.


def test_biases_of_gates_are_spread_from_the_first_head_to_the_last():
    third = 5 / 3
    for num_heads, options, biases in (
        (4, {}, [2.0, 2 + third, 7 - third, 7.0]),
        (2, dict(num_key_value_heads=1), [7.0]),
        (3, dict(forget_gate_bias=(20.0, 2, 5.0)), [20.0, 2.0, 5.0]),
    ):
        layer = ExactAttention(num_heads, 6, forget_gate=True, **options)
        layer.build((None, None, 8))
        assert layer.forget_gate_layer.kernel.shape == (8, len(biases))
        np.testing.assert_allclose(layer.forget_gate_layer.bias, biases, rtol=1e-6)
    bias = np.array([1, 9])
    config = ExactAttention(2, 6, forget_gate=True, forget_gate_bias=bias).get_config()
    assert config["forget_gate"] is True and config["forget_gate_bias"] == (1.0, 9.0)


def test_half_precision_decays_in_float32():
    """A gate of sigmoid(7) is 0.9991; in bfloat16 it would be 1, and forget nothing."""
    options = dict(causal=True, forget_gate=True, seed=1)
    half = ExactAttention(2, 8, dtype="mixed_bfloat16", **options)
    x = normal((1, 600, 8), 1)
    half.build(x.shape)
    for name in ("query", "key"):  # without the gate, all keys have the same weight
        getattr(half, f"{name}_dense").kernel.assign(tf.zeros((8, 2, 8)))
    half.forget_gate_layer.kernel.assign(tf.zeros((8, 2)))
    _, scores = half(x, return_attention_scores=True)
    expected = np.exp(-np.log1p(np.exp(-7.0)) * np.arange(600)[::-1])
    ratio = scores[0, 1, -1].numpy().astype("float64")
    np.testing.assert_allclose(ratio / ratio[-1], expected, rtol=0.02)


def test_only_self_attention_has_a_gate():
    layer = made(forget_gate=True)
    x = tf.constant(X)
    inputs = keras.Input((5, 8))
    with pytest.raises(ValueError, match="forget_gate=True needs self-attention"):
        layer(inputs, keras.Input((7, 8)))
    np.testing.assert_array_equal(layer(x, x), layer(x))
    model = keras.Model(inputs, layer(inputs, inputs))
    np.testing.assert_allclose(model(x[:, :5]), layer(x[:, :5]), rtol=1e-6)
    decoder = PerformerDecoder(16, 2, num_random_features=8, forget_gate=True)
    decoder(X, normal((2, 7, 8), 2))
    gates = [w.path for w in decoder.weights if "forget_gate" in w.path]
    assert gates and all("self_attention" in path for path in gates)


# Keras 3.10 warns if a model made by `from_config` is called with a tensor.
@pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")
@pytest.mark.parametrize("convert", [convert_to_softmax, convert_to_performer])
def test_conversion_keeps_the_gate(convert):
    start = keras.Input((None, 8))
    kind = ExactAttention if convert is convert_to_performer else PerformerAttention
    layer = kind(2, 4, causal=True, forget_gate=True, name="attention")
    model = keras.Model(start, layer(start))
    randomize(layer)
    options = {} if convert is convert_to_softmax else {"exact_window": 12}
    converted, _ = convert(model, **options)
    other = converted.get_layer("attention")
    gates = layer.forget_gate_layer.weights, other.forget_gate_layer.weights
    for one, other in zip(*gates, strict=True):
        np.testing.assert_array_equal(one, other)
    if convert is convert_to_performer:  # a window with all keys is exact
        np.testing.assert_allclose(converted(X), model(X), atol=1e-5)
    with pytest.raises(ValueError, match="forget_gate=True, which Longformer"):
        convert_attention(model, zoo.LongformerAttention, sliding_window=4)
    with pytest.raises(ValueError, match="It has a forget gate"):
        approximation_report(model, X)


# -- Norms of queries and keys.


@pytest.mark.parametrize(
    ("kind", "options", "scale"),
    [
        (ExactAttention, {}, 16),
        (PerformerAttention, {}, 4),
        (PerformerAttention, {"feature_map": "relu"}, 4),
        (PerformerAttention, TAYLOR, 16),
    ],
)
def test_the_scale_that_logits_start_with(kind, options, scale):
    layer = made(kind, random=False, qk_norm=True, **options)
    log_scale = layer.query_key_norm.log_scale
    np.testing.assert_allclose(np.exp(log_scale), [scale, scale], rtol=1e-6)


def test_tokens_without_a_query_or_key_give_finite_gradients():
    layer = made(use_bias=False, qk_norm=True, causal=True)
    x = X * (np.arange(12) % 3 > 0)[:, None]
    output, gradients = output_and_gradients(layer, [x])
    assert all(np.isfinite(z).all() for z in (output, *gradients))


# -- Rotary positions.


def test_positions_of_later_tokens_count_from_the_first():
    layer = made(causal=True, rotary=GRID)
    whole, last = layer(X, return_state=True)
    assert last["position"].numpy().tolist() == [12, 12]
    _, state = layer(X[:, :7], return_state=True)
    # given positions count from 0, not from the state
    for call in ({}, dict(positions=np.arange(7, 12)[None])):
        later = layer(X[:, 7:], state=state, **call)
        np.testing.assert_allclose(later, whole[:, 7:], atol=1e-5)
    wrong = layer(X[:, 7:], state=state, positions=np.arange(5)[None])
    assert np.abs(wrong - whole[:, 7:]).max() > 1e-2


def test_positions_of_a_grid_are_indices_or_coordinates():
    layer = made(rotary=GRID)
    expected = layer(X)
    both_rows = np.repeat(PLACES, 2, 0).astype("int64")
    for positions in (PLACES, both_rows, np.arange(12)[None]):
        np.testing.assert_array_equal(layer(X, positions=positions), expected)
    # the first axis of a grid may be longer than its declared length
    taller = made(rotary=(1, 3, 2))
    np.testing.assert_array_equal(taller(X), expected)


def test_positions_of_another_length_raise_when_a_graph_runs():
    layer = made(rotary=True)
    specs = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), tf.int32)
    called = tf.function(
        lambda x, positions: layer(x, positions=positions), input_signature=specs
    )
    assert called(X, np.zeros((1, 12), "int32")).shape == (2, 12, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions must have a"):
        called(X, np.zeros((2, 1), "int32"))


def test_pieces_without_positions_raise():
    layer = made(rotary=True)
    with pytest.raises(ValueError, match="each piece of a sequence needs positions"):
        layer.absorb(tf.constant(X), None, layer.empty_state(2))
