"""Models, layers and converters pass all options of an attention on to it."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import (
    PerformerAttention,
    PerformerDecoder,
    PerformerEncoder,
    approximation_report,
    convert_to_performer,
)
from keras_performer.conversion import convert_attention
from keras_performer.feature_maps import GeneralizedFeatures
from keras_performer.layers import ExactAttention
from tests.layers.inputs import language_model, normal

NAMES = set(inspect.signature(PerformerAttention).parameters) - {"kwargs"}
# Options that the enclosing model or layer always sets.
DECIDED = {"num_heads", "key_dim", "output_shape", "dropout"}
DECIDED |= {"causal", "seed", "activity_regularizer"}
# One value of each option that is not its default.
VALUES = {
    "value_dim": 3,
    "use_bias": False,
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.1),
    "bias_regularizer": keras.regularizers.L1(0.1),
    "kernel_constraint": keras.constraints.MaxNorm(2.0),
    "bias_constraint": keras.constraints.NonNeg(),
    "num_key_value_heads": 1,
    "rotary": True,
    "qk_norm": True,
    "forget_gate": True,
    "forget_gate_bias": (1.0, 3.0),
    "feature_map": "favor+",
    "num_random_features": 10,
    "chunk_size": 2,
    "exact_window": 3,
    "initial_log_gain": (-4.0, 2.0),
    "jit_compile": False,
}
# Options that the converter or the converted layer sets if they are not given.
GIVEN_ALONE = {"value_dim", "rotary", "kernel_initializer", "bias_initializer"}
# Options that change the weights of dense layers, which the replaced layer determines.
OF_WEIGHTS = {"value_dim", "use_bias", "num_key_value_heads", "qk_norm"}
X, ENCODED = normal((2, 5, 8)), normal((2, 7, 6), seed=1)


def in_model(**options):
    return language_model(**options).blocks[0].attention


def in_encoder(**options):
    layer = PerformerEncoder(12, 2, **options)
    layer.build(X.shape)
    return layer.attention


def in_decoder(**options):
    layer = PerformerDecoder(12, 2, **options)
    layer.build(X.shape)
    return layer.self_attention


def by_converter(convert=convert_to_performer, **options):
    own = {name: options[name] for name in OF_WEIGHTS & options.keys()}
    x = start = keras.Input(X.shape[1:])
    model = keras.Model(start, ExactAttention(2, 4, name="own", **own)(x))
    return convert(model, **{"exact_window": None, **options})[0].get_layer("own")


def by_class(**options):
    return by_converter(convert_attention, attention=PerformerAttention, **options)


MAKERS = [in_model, in_encoder, in_decoder, by_converter, by_class]


@pytest.mark.parametrize("make", MAKERS)
def test_each_option_reaches_the_attention(make):
    assert set(VALUES) == NAMES - DECIDED
    options = dict(**VALUES, activity_regularizer="l2")
    expected = PerformerAttention(2, 4, **options).get_config()
    assert PerformerAttention.from_config(expected).get_config() == expected
    assert expected["activity_regularizer"]["class_name"] == "L2"
    defaults = PerformerAttention(2, 4).get_config()
    options = {**VALUES}
    if make is in_model:
        del options["rotary"]
        options["position_embedding"] = "rotary"
    made = make(**options).get_config()
    # one given option does not change others
    alone = make(chunk_size=2).get_config()
    for name, value in VALUES.items():
        assert made[name] == expected[name] != defaults[name], name
        if isinstance(value, (int, float, tuple)):
            assert made[name] == value, name
        if name not in {"chunk_size", *GIVEN_ALONE}:
            assert alone[name] == defaults[name], name


def test_what_is_called_has_the_signature_of_the_call():
    layer = PerformerEncoder(12, 2)
    assert next(iter(inspect.signature(layer).parameters)) != "num_heads"
    called = tf.function(layer, input_signature=[tf.TensorSpec(X.shape)])
    np.testing.assert_allclose(called(X), layer(X), atol=1e-5)


def test_subclasses_show_what_they_take():
    class Own(PerformerEncoder):
        def __init__(self, *args, further: int = 3, **kwargs):
            super().__init__(*args, **kwargs)

    shown = list(inspect.signature(Own).parameters)
    assert shown[:2] == ["intermediate_dim", "num_heads"]
    assert {"further", "exact_window", "attention"} <= set(shown)
    with pytest.raises(ValueError, match="Own has no argument furter: did you mean f"):
        Own(12, 2, furter=4)

    class Small(PerformerEncoder):
        def __init__(self, width):
            super().__init__(width, 1)

    assert list(inspect.signature(Small).parameters) == ["width"]


COMMON = dict(feature_map="favor+", num_random_features=10, qk_norm=True)
COMMON |= dict(exact_window=3, initial_log_gain=(-4.0, 2.0), num_key_value_heads=1)


def across_decoder(**options):
    layer = PerformerDecoder(12, 2, **options)
    layer.build(X.shape, ENCODED.shape)
    return layer.cross_attention


@pytest.mark.parametrize("make", [in_model, in_encoder, in_decoder, across_decoder])
def test_options_are_those_of_an_attention_that_is_given(make):
    options = COMMON if make is in_model else {**COMMON, "rotary": True}
    given = PerformerAttention(2, 4, causal=make is in_model, **options)
    made = make(dropout=0.3, seed=1, **options)
    other = make(dropout=0.3, seed=1, attention=given)
    assert made.get_config() == other.get_config()
    assert made.dropout == 0.3
    kept = PerformerAttention(2, 4, causal=make is in_model, dropout=0.1)
    assert make(dropout=0.3, attention=kept).dropout == 0.1


def test_exact_attention_has_options_of_its_own():
    options = dict(attention="exact", num_key_value_heads=1, qk_norm=True)
    for made in (in_model(**options), in_encoder(**options), in_decoder(**options)):
        assert type(made) is ExactAttention
        assert (made.num_key_value_heads, made.qk_norm) == (1, True)
    mixed = ["exact", "performer"]
    model = language_model(num_layers=2, attention=mixed, chunk_size=2)
    assert model.blocks[1].attention.chunk_size == 2


def test_a_config_needs_no_layer_that_is_built():
    general = GeneralizedFeatures("relu", epsilon=0.5)
    gains = np.array([-4.0, 2.0])
    for options in (
        dict(exact_window=3, initial_log_gain=gains, kernel_regularizer="l2"),
        dict(feature_map=general),
    ):
        layer = PerformerEncoder(12, 2, **options)
        again = PerformerEncoder.from_config(json.loads(json.dumps(layer.get_config())))
        for each in (layer, again):
            each.build(X.shape)
        assert again.get_config() == layer.get_config()
        made = again.attention
        assert made.initial_log_gain == (-4.0, 2.0) or made.feature_map == general


def test_a_frozen_attention_is_frozen_in_a_layer_until_it_is_not():
    frozen = PerformerAttention(2, 4, trainable=False)
    layer = PerformerEncoder(12, 2, attention=frozen)
    again = PerformerEncoder.from_config(layer.get_config())
    again.build(X.shape)
    assert not again.attention.trainable and again.expand.trainable
    again.attention.trainable = True
    assert PerformerEncoder.from_config(again.get_config()).trainable
    last = PerformerEncoder.from_config(again.get_config())
    last.build(X.shape)
    assert last.attention.trainable


@pytest.mark.parametrize("name", sorted(OF_WEIGHTS))
def test_options_that_ask_for_other_weights_are_refused(name):
    x = start = keras.Input(X.shape[1:])
    layer = keras.layers.MultiHeadAttention(2, 4, name="own")
    model = keras.Model(start, layer(x, x))
    with pytest.raises(ValueError, match="the weights do not fit"):
        convert_to_performer(model, **{name: VALUES[name]})
    with pytest.raises(ValueError, match="the weights do not fit"):
        approximation_report(model, X, **{name: VALUES[name]})


def test_a_gain_that_is_given_is_not_that_of_the_layer():
    first = PerformerAttention(2, 4, exact_window=3, name="own")
    model = keras.Sequential([keras.Input(X.shape[1:]), first])
    first.assign_log_gain(5.0)
    given, _ = convert_to_performer(model, initial_log_gain=(-4.0, 2.0))
    kept, _ = convert_to_performer(model, exact_window=4)
    for other, gains in ((given, [-4.0, 2.0]), (kept, [5.0, 5.0])):
        np.testing.assert_allclose(other.get_layer("own").log_gain, gains, rtol=1e-6)


def test_a_config_may_have_the_default_of_what_is_no_more():
    for layer in (PerformerAttention(2, 4), PerformerEncoder(12, 2)):
        config = layer.get_config()
        old = type(layer).from_config({**config, "exact_below": None})
        assert old.get_config() == config
        with pytest.raises(ValueError, match="has no argument exact_below.*=64"):
            type(layer).from_config({**config, "exact_below": 64})
