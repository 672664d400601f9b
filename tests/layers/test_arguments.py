"""Constructor arguments are checked at once, by errors that say what to do."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM, layers, zoo
from keras_performer.feature_maps import GeneralizedFeatures
from tests.layers.inputs import normal

ALL_KINDS = [
    kind
    for kind in (*vars(layers).values(), *vars(zoo).values())
    if inspect.isclass(kind) and issubclass(kind, layers.AttentionLayer)
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_heads=0), "num_heads must be a positive int. Received: num_heads=0"),
        (dict(num_heads=2.0), "num_heads must be a positive int"),
        (dict(num_heads=True), "num_heads must be a positive int"),
        (dict(key_dim=-1), "key_dim must be a positive int"),
        (dict(key_dim=None), "key_dim must be a positive int"),
        (dict(value_dim=0), "value_dim must be a positive int or None"),
        (dict(dropout=1.0), r"dropout must be .* \[0, 1\). Received: dropout=1.0"),
        (dict(dropout=-0.1), "dropout must be"),
        (dict(dropout="0.1"), "dropout must be"),
        (dict(output_shape="8"), "output_shape must be an int or a tuple of ints"),
        (dict(output_shape=0), "output_shape must be a positive int or a tuple"),
        (dict(output_shape=(4, -1)), "output_shape must be a positive int or a tuple"),
        (dict(output_shape=True), "output_shape must be an int or a tuple of ints"),
        (dict(output_shape=""), "output_shape must be an int or a tuple of ints"),
        (dict(seed=True), "seed must be an int or None. Received: seed=True"),
        (dict(causal="False"), "causal must be True or False. Received: causal='Fal"),
        (dict(use_bias="no"), "use_bias must be True or False"),
        (dict(chunk_size=2**31), r"chunk_size must be a positive int below 2\*\*31"),
        (dict(num_random_features=0), "num_random_features must be a positive int"),
        (dict(num_random_features=7), "num_random_features must be even"),
        (dict(num_random_features=None), "needs random features"),
        (dict(num_key_value_heads=4), "num_key_value_heads must divide num_heads"),
        (dict(chunk_size=0), "chunk_size must be a positive int or None"),
        (dict(feature_map="performer"), "feature_map must be one of softmax, favor"),
        (dict(feature_map=None), "feature_map must be one of"),
        (
            dict(causal=np.ones(2)),
            "causal must be True or False. Received: causal=array",
        ),
        (dict(jit_compile=np.ones(2)), "jit_compile must be True, False or"),
    ],
)
def test_a_wrong_argument_says_what_was_wanted(options, message):
    with pytest.raises(ValueError, match=message):
        PerformerAttention(**{"num_heads": 6, "key_dim": 4, **options})


@pytest.mark.parametrize("empty", [(), []])
def test_an_empty_output_shape_is_none(empty):
    """As in Keras, whose layer has the features of the query then."""
    layer = PerformerAttention(2, 4, output_shape=empty)
    assert layer.get_config()["output_shape"] is None
    assert layer(normal((2, 3, 7))).shape == (2, 3, 7)
    assert keras.layers.MultiHeadAttention(2, 4, output_shape=empty)(
        *[normal((2, 3, 7))] * 2
    ).shape == (2, 3, 7)


def test_numbers_may_be_of_numpy():
    options = dict(num_heads=np.int64(6), key_dim=np.int32(4), seed=np.int64(1))
    layer = PerformerAttention(**options, dropout=np.float32(0.5), causal=np.bool_(1))
    config = json.loads(json.dumps(layer.get_config()))
    assert (config["num_heads"], config["dropout"], config["causal"]) == (6, 0.5, True)


@pytest.mark.parametrize("built", [False, True])
def test_inputs_have_three_axes(built):
    message = r"{} must have shape \(batch, length, features\).*Received: {} of shape"
    for shape in ((3, 7), (2, 5, 3, 7)):
        for name, inputs in (
            ("query", [shape]),
            ("value", [(2, 3, 7), shape]),
            ("key", [(2, 3, 7), (2, 3, 7), shape]),
        ):
            layer = PerformerAttention(2, 4)
            if built:
                layer.build((2, 3, 7))
            with pytest.raises(ValueError, match=message.format(name, name)):
                layer(*map(normal, inputs))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_batches_of_different_sizes_raise(known, sizes):
    layer = PerformerAttention(2, 4)
    layer.build((None, None, 7))
    unknown = tf.TensorSpec((None, None, 7))
    called = tf.function(layer, input_signature=None if known else [unknown, unknown])
    wanted = ValueError if known else tf.errors.InvalidArgumentError
    with pytest.raises(wanted, match="query, key and value must have the same batch"):
        called(*(normal((size, 5, 7)) for size in sizes))


# names of Keras, values that ask for nothing, others, and what to do instead
OF_KERAS = [
    ("attention_axes", [None, 1, (1,), [1]], [2, (1, 2), [-2]], "into the batch"),
    ("sliding_window", [None], [64, 0], "LocalAttention .*exact_window"),
    ("flash_attention", [None, False], [True], "MultiHeadAttention"),
    ("use_gate", [False], [True], "multiply by a gate after the layer"),
]


@pytest.mark.parametrize("kind", [PerformerAttention, layers.ExactAttention])
@pytest.mark.parametrize(("name", "nothing", "others", "advice"), OF_KERAS)
def test_what_keras_has_beside_is_refused(kind, name, nothing, others, advice):
    config = kind(2, 4).get_config()
    assert name not in config
    for value in nothing:
        for made in (
            kind(**config, **{name: value}),
            kind.from_config({**config, name: value}),
        ):
            assert made.get_config() == config
    for value in (*others, np.ones(2)):
        message = (
            f"{kind.__name__} has no argument {name}: .*{advice}.* Received: {name}="
        )
        with pytest.raises(ValueError, match=message):
            kind(2, 4, **{name: value})
        with pytest.raises(ValueError, match=message):
            kind.from_config({**config, name: value})


def test_value_and_key_of_different_lengths_raise():
    layer = PerformerAttention(2, 4)
    with pytest.raises(ValueError, match="value and key must have the same shape"):
        layer(normal((2, 3, 7)), normal((2, 5, 7)), normal((2, 6, 7)))


def test_every_argument_that_is_not_default_is_kept():
    options = dict(
        num_heads=6,
        key_dim=4,
        value_dim=5,
        dropout=0.25,
        use_bias=False,
        output_shape=(3, 2),
        kernel_initializer=keras.initializers.HeNormal(seed=3),
        bias_initializer=keras.initializers.Constant(0.5),
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.2),
        activity_regularizer=keras.regularizers.L2(0.3),
        kernel_constraint=keras.constraints.MaxNorm(4.0),
        bias_constraint=keras.constraints.NonNeg(),
        seed=11,
        feature_map=GeneralizedFeatures("relu", epsilon=0.5),
        num_random_features=None,
        causal=True,
        num_key_value_heads=2,
        chunk_size=16,
        rotary=(3, 2),
        qk_norm=True,
        forget_gate=True,
        forget_gate_bias=(1.0, 3.0),
        jit_compile=False,
    )
    named = inspect.signature(PerformerAttention).parameters
    # these go with no generalized feature map: see the end
    of_softmax = {"exact_window": 5, "initial_log_gain": -3.0}
    assert set(options) == set(named) - {"kwargs", *of_softmax}
    defaults = PerformerAttention(6, 4).get_config()
    config = PerformerAttention(**options).get_config()
    again = PerformerAttention.from_config(config).get_config()
    assert again == config
    for name, value in options.items():
        if name in ("num_heads", "key_dim"):
            continue
        assert config[name] != defaults[name], name
        if isinstance(value, (int, float, tuple)):
            assert config[name] == value, name
    assert config["kernel_initializer"]["class_name"] == "HeNormal"
    assert config["kernel_initializer"]["config"]["seed"] == 3
    assert config["feature_map"]["config"] == {"activation": "relu", "epsilon": 0.5}
    assert config["activity_regularizer"]["config"] == {"l2": pytest.approx(0.3)}
    config = PerformerAttention(6, 4, **of_softmax).get_config()
    again = PerformerAttention.from_config(config).get_config()
    assert of_softmax.items() <= again.items()


def test_the_first_arguments_are_those_of_multi_head_attention():
    def positional(function):
        parameters = inspect.signature(function).parameters.values()
        return [
            (p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
        ]

    ours = positional(PerformerAttention)
    assert ours == positional(keras.layers.MultiHeadAttention)[:6]
    assert ours[-1] == ("output_shape", None)
    exact_call = positional(keras.layers.MultiHeadAttention.call)
    call = [p[0] for p in positional(PerformerAttention.call)]
    assert {name for name, _ in exact_call} <= set(call)
    assert call[:6] == [name for name, _ in exact_call][:6]


def test_lm_checks_what_attention_would_notice_late():
    good = dict(
        vocabulary_size=5, max_length=6, num_layers=1, num_heads=2, hidden_dim=4
    )
    for options, message in (
        (dict(vocabulary_size=0), "vocabulary_size must be a positive int"),
        (dict(num_heads=3), "num_heads must divide hidden_dim"),
        (dict(position_shape=(2, 2)), "position_shape must be max_length"),
        (dict(position_shape=(-2, -3)), "position_shape must be a positive int or a"),
        (dict(num_random_features=7), "must be even"),
    ):
        with pytest.raises(ValueError, match=message):
            PerformerLM(**{**good, **options})


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_attention_has_the_places_of_keras(kind):
    def places(layer):
        parameters = inspect.signature(layer).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert places(kind) == places(PerformerAttention)


@pytest.mark.parametrize("kind", [layers.LocalAttention, zoo.LongformerAttention])
def test_a_window_is_required(kind):
    default = inspect.signature(kind).parameters["sliding_window"].default
    assert default is inspect.Parameter.empty
    with pytest.raises(TypeError, match="required.*'sliding_window'"):
        kind(2, 4)
    config = kind(2, 4, sliding_window=3).get_config()
    assert config["sliding_window"] == 3
    assert kind.from_config(config).get_config() == config


@pytest.mark.parametrize("built", [False, True])
def test_a_config_of_keras_makes_ours(built):
    options = dict(num_heads=2, key_dim=4, dropout=0.1, use_bias=False, seed=3)
    exact = keras.layers.MultiHeadAttention(**options)
    if built:
        exact.build((2, 3, 7), (2, 3, 7))
    config = exact.get_config()
    assert config["attention_axes"] == ((1,) if built else None)
    ours = PerformerAttention.from_config(config).get_config()
    # objects are serialized in one way
    common = {name: config[name] for name in config if name in ours}
    assert {name: ours[name] for name in common} == {**common, "value_dim": 4}
    assert config.keys() - ours.keys() <= {name for name, *_ in OF_KERAS}


def test_what_has_no_place_is_given_by_name():
    with pytest.raises(TypeError, match="positional arguments but 9 were given"):
        PerformerAttention(2, 4, None, 0.0, True, None, None, "he_normal")


def test_a_subclass_may_pass_on_an_argument_that_other_layers_have_not():
    """`sliding_window` is refused where there is none, but not here."""

    class Passing(layers.LocalAttention):
        def __init__(self, num_heads, key_dim, **kwargs):
            super().__init__(num_heads, key_dim, **kwargs)

    config = Passing(2, 4, sliding_window=3).get_config()
    assert Passing.from_config(config).sliding_window == 3
