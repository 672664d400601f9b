"""Constructor arguments are checked at once, by errors that say what to do."""

import inspect
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import (
    PerformerAttention,
    PerformerEncoder,
    PerformerLM,
    layers,
    zoo,
)
from keras_performer.feature_maps import GeneralizedFeatures
from tests.layers.inputs import normal

ALL_KINDS = [
    kind
    for kind in (*vars(layers).values(), *vars(zoo).values())
    if inspect.isclass(kind) and issubclass(kind, layers.AttentionLayer)
]
LM = dict(vocabulary_size=5, max_length=6, num_layers=1, num_heads=2, hidden_dim=4)
SMALL = dict(num_heads=6, key_dim=4)
NEAR = dict(**SMALL, sliding_window=3)
MIXER = dict(max_length=4, intermediate_dim=4)
BLOCK = dict(attention=None, intermediate_dim=4)
CAUSAL_BLOCK = {**BLOCK, "attention": PerformerAttention(2, 4, causal=True)}
# What is made, each of a class and of arguments that are right.
MADE = {
    "performer": (PerformerAttention, SMALL),
    "window": (PerformerAttention, dict(**SMALL, exact_window=3)),
    "exact": (layers.ExactAttention, SMALL),
    "gate": (layers.ExactAttention, dict(**SMALL, forget_gate=True)),
    "local": (layers.LocalAttention, NEAR),
    "linear": (layers.LinearTransformerAttention, SMALL),
    "longformer": (zoo.LongformerAttention, NEAR),
    "big bird": (zoo.BigBirdAttention, SMALL),
    "linformer": (zoo.LinformerAttention, dict(**SMALL, max_length=11)),
    "sinkhorn": (zoo.SinkhornAttention, dict(**SMALL, block_size=2, max_length=8)),
    "synthesizer": (zoo.SynthesizerAttention, dict(**SMALL, max_length=11)),
    "reformer": (zoo.ReformerAttention, NEAR),
    "fourier": (zoo.FourierMixing, {}),
    "gating": (zoo.SpatialGatingUnit, MIXER),
    "tokens": (zoo.TokenMixing, MIXER),
    "block": (layers.PerformerBlock, BLOCK),
    "convolution": (layers.PerformerBlock, dict(**BLOCK, conv_kernel_size=2)),
    "causal": (layers.PerformerBlock, dict(**CAUSAL_BLOCK, conv_kernel_size=2)),
    "reversible": (zoo.ReversibleBlock, dict(intermediate_dim=4)),
    "encoder": (PerformerEncoder, dict(intermediate_dim=11, num_heads=2)),
    "model": (PerformerLM, dict(LM)),
}
# What is made, an argument and a value that are wrong, and what the error wants.
WRONG = [
    ("performer", "num_heads", 2.0, "positive int"),
    ("performer", "num_heads", True, "positive int"),
    ("performer", "key_dim", -1, "positive int"),
    ("performer", "key_dim", None, "positive int"),
    ("performer", "dropout", 1.0, r"\[0, 1\)"),
    ("performer", "dropout", -0.1, r"\[0, 1\)"),
    ("performer", "output_shape", "8", "an int or a tuple of ints"),
    ("performer", "output_shape", 0, "a positive int or a tuple"),
    ("performer", "output_shape", (4, -1), "a positive int or a tuple"),
    ("performer", "output_shape", True, "an int or a tuple of ints"),
    ("performer", "output_shape", "", "an int or a tuple of ints"),
    ("performer", "seed", True, "an int or None"),
    ("performer", "causal", "False", "True or False"),
    ("performer", "causal", np.ones(2), "True or False"),
    ("performer", "use_bias", "no", "True or False"),
    ("performer", "chunk_size", 0, "positive int or None"),
    ("performer", "chunk_size", 2**31, r"positive int below 2\*\*31"),
    ("performer", "num_random_features", 0, "positive int"),
    ("performer", "num_key_value_heads", 4, "must divide num_heads"),
    ("performer", "feature_map", None, "one of softmax, favor"),
    ("performer", "jit_compile", np.ones(2), "True, False or"),
    ("performer", "exact_window", 0, "positive int"),
    ("performer", "exact_window", 1.5, "positive int"),
    ("performer", "exact_window", True, "positive int"),
    ("performer", "initial_log_gain", [0.0, -3.0] * 3, "give exact_window as well"),
    ("performer", "rotary", (2, 2, 2, 2), "divisible by 2 for each axis.*by 8"),
    ("window", "initial_log_gain", "-3", "a finite float"),
    ("window", "initial_log_gain", float("nan"), "a finite float"),
    ("window", "initial_log_gain", True, "a finite float"),
    ("window", "initial_log_gain", [0.0, "1"], "or a list of one for each head"),
    ("window", "initial_log_gain", [1.0], "a float for each head"),
    ("window", "initial_log_gain", np.ones((1, 6)), "a finite float, or a list"),
    *(
        ("gate", "forget_gate_bias", wrong, "two finite floats")
        for wrong in ((1.0,), 3.0, "12", (2.0, np.inf), None, (1, 2, 3), (True, 0))
    ),
    ("exact", "forget_gate_bias", (1.0, 9.0), "give forget_gate=True as well"),
    ("exact", "qk_norm", 3.0, "True or False"),
    *(
        ("exact", "rotary", wrong, "must be")
        for wrong in (64, 0, "line", (0, 2), (2.5,), (), {"grid": 2})
    ),
    ("local", "sliding_window", -1, "positive int"),
    ("linear", "chunk_size", 0, "positive int"),
    ("linear", "jit_compile", 3, "True, False"),
    ("longformer", "sliding_window", None, "positive int"),
    ("longformer", "num_global_tokens", -1, "an int, 0 or more"),
    ("longformer", "num_global_tokens", None, "an int, 0 or more"),
    ("big bird", "block_size", None, "positive int"),
    ("big bird", "num_global_blocks", -1, "an int, 0 or more"),
    ("big bird", "num_random_blocks", 1.5, "an int, 0 or more"),
    ("linformer", "max_length", None, "positive int"),
    ("linformer", "projection_dim", 2.5, "positive int"),
    ("linformer", "sharing", "layerwise", '"none", "headwise" or "key-value"'),
    ("sinkhorn", "block_size", 0, "positive int"),
    ("sinkhorn", "max_length", 2.5, "positive int"),
    ("sinkhorn", "num_iterations", -1, r"an int, 0 or more and below 2\*\*31 or None"),
    ("sinkhorn", "temperature", 0.0, "a positive float"),
    ("sinkhorn", "temperature", True, "a positive float"),
    ("sinkhorn", "noise", -1.0, "0 or a positive float"),
    ("sinkhorn", "noise", float("nan"), "0 or a positive float"),
    ("synthesizer", "max_length", 0, "positive int"),
    ("synthesizer", "kind", "dens", '"dense", "random" or "factorized_random"'),
    ("synthesizer", "rank", 8, 'that of kind="factorized_random"'),
    ("synthesizer", "rotary", True, "no queries and keys to rotate"),
    ("synthesizer", "qk_norm", True, "no queries and keys to normalize"),
    ("reformer", "num_buckets", 3, "must be even"),
    ("reformer", "num_buckets", 0, "positive int"),
    ("reformer", "num_hashes", None, "positive int"),
    ("reformer", "sliding_window", 1.5, "positive int"),
    ("reformer", "num_key_value_heads", 1, "must be num_heads, or None"),
    ("reformer", "qk_norm", True, "learns those of queries"),
    ("fourier", "norm", None, '"backward" or "ortho"'),
    ("gating", "max_length", 0, "positive int"),
    ("gating", "intermediate_dim", 2.5, "positive int"),
    ("gating", "intermediate_dim", 7, "must be even"),
    ("gating", "causal", "yes", "True or False"),
    ("tokens", "max_length", True, "positive int"),
    ("tokens", "intermediate_dim", None, "positive int"),
    ("block", "attention", "performer", "an AttentionLayer or a MixingLayer"),
    ("block", "intermediate_dim", 0, "positive int"),
    ("block", "dropout", 1.0, "a float"),
    ("block", "seed", "a", "an int"),
    ("block", "conv_kernel_size", 0, "positive int"),
    ("block", "conv_kernel_size", True, "positive int"),
    ("convolution", "conv_padding", "valid", '"causal", "same" or None'),
    ("causal", "conv_padding", "same", "later tokens"),
    *(
        ("reversible", "attention", wrong, "an AttentionLayer or the conf")
        for wrong in (None, [], [None], "performer")
    ),
    ("encoder", "intermediate_dim", 0, "positive int"),
    ("encoder", "num_heads", 0, "positive int"),
    ("encoder", "num_heads", 4, "must divide hidden_dim"),
    ("encoder", "dropout", 1.0, "a float"),
    ("encoder", "normalize_first", "yes", "True or False"),
    ("encoder", "seed", "a", "an int"),
    ("encoder", "exact_window", 0, "positive int"),
    ("encoder", "initial_log_gain", 2.0, "that of keys"),
    ("encoder", "num_key_value_heads", 3, "must divide"),
    ("encoder", "rotary", "yes", "None, True"),
    ("model", "vocabulary_size", 0, "positive int"),
    ("model", "position_shape", (-2, -3), "a positive int or a"),
]


@pytest.mark.parametrize("made", MADE)
def test_a_wrong_argument_says_what_was_wanted(made):
    kind, right = MADE[made]
    rows = [row for row in WRONG if row[0] == made]
    assert rows
    for _, name, value, wanted in rows:
        message = said(kind, **{**right, name: value})
        before, _, received = message.partition("Received: ")
        assert name in message and re.search(wanted, before), message
        if not isinstance(value, (np.ndarray, list)):
            assert f"{name}={value!r}" in received.replace('"', "'"), received


def said(made, **options):
    """The error of making a layer."""
    try:
        layer = made(**options)
        if made is PerformerEncoder:  # its attention checks what is passed on
            layer.build((2, 3, 6))
    except ValueError as error:
        return str(error)
    pytest.fail(f"{made.__name__} takes {options}")


@pytest.mark.parametrize("empty", [(), []])
def test_an_empty_output_shape_is_none(empty):
    """Keras' layer then has the features of the query, too."""
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
    for kind in ALL_KINDS:
        assert positional(kind) == ours
    assert ours == positional(keras.layers.MultiHeadAttention)[:6]
    assert ours[-1] == ("output_shape", None)
    exact_call = positional(keras.layers.MultiHeadAttention.call)
    call = [p[0] for p in positional(PerformerAttention.call)]
    assert {name for name, _ in exact_call} <= set(call)
    assert call[:6] == [name for name, _ in exact_call][:6]


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
