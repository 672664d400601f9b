"""Attention with a forget gate, beside twins in NumPy and float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM, generate, ops, zoo
from keras_performer.conversion import (
    approximation_report,
    convert_attention,
    convert_to_performer,
    convert_to_softmax,
)
from keras_performer.layers import (
    ExactAttention,
    LinearTransformerAttention,
    LocalAttention,
    PerformerDecoder,
)
from tests.layers.inputs import language_model, normal
from tests.layers.twins import (
    randomize,
)

LENGTH, WINDOW = 11, 3
KINDS = {
    "exact": (ExactAttention, {}),
    "local": (LocalAttention, {"sliding_window": WINDOW}),
    "elu": (LinearTransformerAttention, {}),
    "features": (PerformerAttention, {}),
    "window": (PerformerAttention, {"exact_window": WINDOW}),
}


def made(kind, causal=True, **options):
    """A layer of 4 query heads and two key-value heads, with random weights."""
    layer_class, own = KINDS[kind]
    if layer_class is PerformerAttention:
        own = {**own, "num_random_features": 8}
    common = dict(num_key_value_heads=2, seed=1, causal=causal, forget_gate=True)
    layer = layer_class(4, 6, **{**common, **own, "dtype": "float64", **options})
    layer.build((2, None, 8))
    randomize(layer)
    return layer


@pytest.mark.parametrize("kind", ["exact", "window"])
def test_a_gate_that_forgets_nothing_is_none(kind):
    layer, plain = made(kind), made(kind, forget_gate=False)
    names = [x.path.split("/", 1)[1] for x in plain.weights]
    by_name = {x.path.split("/", 1)[1]: x for x in layer.weights}
    assert set(by_name) - set(names) == {"forget_gate/kernel", "forget_gate/bias"}
    for name, weight in zip(names, plain.weights, strict=True):
        weight.assign(by_name[name])
    by_name["forget_gate/bias"].assign([60.0, 60.0])
    by_name["forget_gate/kernel"].assign(tf.zeros((8, 2)))
    x = normal((2, LENGTH, 8), 1, dtype="float64")
    np.testing.assert_allclose(layer(x), plain(x), atol=1e-9)


def test_biases_are_spread_from_the_first_head_to_the_last():
    layer = ExactAttention(4, 6, use_bias=False, forget_gate=True)
    layer.build((None, None, 8))
    assert layer.forget_gate_layer.kernel.shape == (8, 4)
    np.testing.assert_allclose(
        layer.forget_gate_layer.bias, [2.0, 2 + 5 / 3, 2 + 10 / 3, 7.0], rtol=1e-6
    )
    # half of a weight is left after 5 tokens, and after 760
    for bias, tokens in ((2.0, 5.46), (7.0, 760.0)):
        assert 0.5 == pytest.approx((1 + np.exp(-bias)) ** -tokens, abs=1e-3)
    one = LocalAttention(
        2, 6, sliding_window=2, num_key_value_heads=1, forget_gate=True
    )
    one.build((None, None, 8))
    np.testing.assert_allclose(one.forget_gate_layer.bias, [7.0])
    some = ExactAttention(3, 6, forget_gate=True, forget_gate_bias=(20.0, 2, 5.0))
    some.build((None, None, 8))
    np.testing.assert_allclose(some.forget_gate_layer.bias, [20.0, 2.0, 5.0])
    config = ExactAttention(
        2, 6, forget_gate=True, forget_gate_bias=np.array([1, 9])
    ).get_config()
    assert config["forget_gate"] is True and config["forget_gate_bias"] == (1.0, 9.0)


def test_half_precision_decays_in_float32():
    """A gate of sigmoid(7) is 0.9991: in bfloat16 it would be 1, and forget nothing."""
    wide = ExactAttention(2, 8, causal=True, forget_gate=True, seed=1)
    x = normal((1, 600, 8), 1)
    wide.build(x.shape)
    for name in ("query", "key"):  # all keys have one weight but for the gate
        getattr(wide, f"{name}_dense").kernel.assign(tf.zeros((8, 2, 8)))
    wide.forget_gate_layer.kernel.assign(tf.zeros((8, 2)))
    half = ExactAttention.from_config({**wide.get_config(), "dtype": "mixed_bfloat16"})
    half.build(x.shape)
    half.set_weights(wide.get_weights())
    _, scores = half(x, return_attention_scores=True)
    expected = 0.5 * np.exp(-np.log1p(np.exp(-7.0)) * np.arange(600)[::-1])
    ratio = scores[0, 1, -1].numpy().astype("float64")
    np.testing.assert_allclose(ratio / ratio[-1] / 2, expected, rtol=0.02)


def test_only_self_attention_has_a_gate():
    layer = made("features", causal=False)
    x, y = normal((2, 5, 8), 1), normal((2, 5, 8), 2)
    for others in ((y,), (x, y)):
        with pytest.raises(ValueError, match="forget_gate=True is for self-attention"):
            layer(x, *others)
    x = tf.constant(x)
    np.testing.assert_array_equal(layer(x, x), layer(x))
    inputs = keras.Input((5, 8))
    with pytest.raises(ValueError, match="forget_gate=True is for self-attention"):
        layer(inputs, keras.Input((7, 8)))
    model = keras.Model(inputs, layer(inputs, inputs))
    np.testing.assert_allclose(model(x), layer(x), rtol=1e-6)


def test_the_state_is_of_the_gate():
    """A state without decays is refused, and says what it lacks."""
    plain = made("window", forget_gate=False)
    state = plain.get_initial_state(1)
    with pytest.raises(ValueError, match='"decay"'):
        made("window")(normal((1, 1, 8), 1), state=state)
    assert isinstance(
        ops.DecayingState(**made("window").get_initial_state(1)["attention"]), tuple
    )


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["block", "network"])
def test_a_language_model_trains_the_same_in_chunks(recompute):
    options = dict(exact_window=4, num_random_features=8, forget_gate=True, seed=1)
    model = language_model(30, 40, 1, 2, 8, chunk_size=8, **options)
    tokens = np.random.default_rng(1).integers(0, 30, (2, 20))
    model.build(tokens.shape)
    again = PerformerLM.from_config({**model.get_config(), "recompute": recompute})
    again.build(tokens.shape)
    again.set_weights(model.get_weights())
    before, after = model.get_weights(), []
    for each in (model, again):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
        each.train_on_batch(tokens, tokens)
        after.append(each.get_weights())
    gates = [w.path for w in model.weights if "forget_gate" in w.path]
    assert len(gates) == 2
    for weight, start, one, other in zip(model.weights, before, *after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert not np.array_equal(start, one) or weight.path not in gates


def test_it_generates_what_it_predicts():
    """The decays are in the state of the loop over tokens."""
    options = dict(exact_window=4, num_random_features=8, forget_gate=True, seed=1)
    model = language_model(30, 40, 1, 2, 8, **options)
    prompt = np.random.default_rng(1).integers(0, 30, (3, 9))
    tokens = np.asarray(generate(model, prompt, 20, temperature=0.0))
    likeliest = np.argmax(model(tokens[:, :-1]), -1)
    np.testing.assert_array_equal(likeliest[:, 8:], tokens[:, 9:])


def test_bidirectional_recompute_is_refused():
    with pytest.raises(ValueError, match="without a forget gate"):
        language_model(
            30, 40, 1, 2, 16, causal=False, forget_gate=True, recompute="block"
        )


def test_the_decoder_has_a_gate_for_its_own_sequence():
    layer = PerformerDecoder(16, 2, num_random_features=8, forget_gate=True)
    layer(normal((1, 5, 8), 1), normal((1, 7, 8), 2))
    gates = [w.path for w in layer.weights if "forget_gate" in w.path]
    assert gates and all("self_attention" in path for path in gates)


@pytest.mark.parametrize("convert", [convert_to_softmax, convert_to_performer])
def test_conversion_keeps_the_gate(convert):
    x = start = keras.Input((None, 8))
    kind = ExactAttention if convert is convert_to_performer else PerformerAttention
    layer = kind(2, 4, causal=True, forget_gate=True, name="attention")
    model = keras.Model(start, layer(x))
    randomize(layer)
    x = normal((1, 30, 8), 1)
    options = {} if convert is convert_to_softmax else {"exact_window": 30}
    converted, _ = convert(model, **options)
    twin = converted.get_layer("attention")
    for one, other in zip(
        layer.forget_gate_layer.weights, twin.forget_gate_layer.weights, strict=True
    ):
        np.testing.assert_array_equal(one, other)
    if convert is convert_to_performer:  # a window that sees all is exact
        np.testing.assert_allclose(converted(x), model(x), atol=1e-5)
    with pytest.raises(ValueError, match="forget_gate=True, which Longformer"):
        convert_attention(model, zoo.LongformerAttention, sliding_window=4)
    with pytest.raises(ValueError, match="It has a forget gate"):
        approximation_report(model, x)


def test_masks_of_keras_reach_it_without_a_warning():
    """Warnings are errors here."""
    layer = LocalAttention(2, 4, sliding_window=4, forget_gate=True, causal=True)
    embedding = keras.layers.Embedding(20, 8, mask_zero=True)
    model = keras.Sequential([keras.Input((None,)), embedding, layer])
    tokens = np.array([[3, 4, 5, 6]])
    padded = np.array([[3, 4, 5, 6, 0, 0]])
    np.testing.assert_allclose(model(padded)[:, :4], model(tokens), atol=1e-6)
