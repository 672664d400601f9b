"""Promises of all layers: masks, scores, files, XLA, methods before `build`."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo
from keras_performer.layers import AttentionLayer, MixingLayer, keras_privates
from tests.cases import CASES
from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.twins import randomize

KINDS = AttentionLayer, MixingLayer


def kind_of(name, case):
    """Returns a key of cases; cases with equal keys have the same code for masks."""
    options = case.arguments
    if not issubclass(case.layer_class, KINDS):
        return case.layer_class, name
    return case.layer_class, options.get("causal"), options.get("exact_window")


# One case of each kind: the last one, with one input if possible.
CHOSEN = {
    kind_of(name, case): name
    for name, case in sorted(CASES.items(), key=lambda x: -len(x[1].widths))
    if case.widths
}.values()
ATTENTION = [n for n in CHOSEN if issubclass(CASES[n].layer_class, AttentionLayer)]
LENGTH = 9
# The first example has holes and padding on the right; the second hides all tokens.
SEEN = np.array([[0, 1, 1, 0, 1, 1, 1, 0, 0], [0] * LENGTH], bool)


def made(name, dtype="float64"):
    """Returns the layer of a case, with random weights, and a list of inputs."""
    case = CASES[name]
    layer = case.make(dtype=dtype)
    layer.build(*((2, None, width) for width in case.widths))
    randomize(layer)
    shapes = [(2, LENGTH, width) for width in case.widths]
    return layer, [normal(shape, i).astype(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", CHOSEN)
def test_hidden_tokens_are_not_there(name):
    """Hidden tokens have no effect, even if they are huge or all tokens are hidden."""
    layer, (*others, x) = made(name)
    mask, x = CASES[name].mask_name(), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = layer(*others, x, **{mask: SEEN})
        loss = tf.reduce_sum(output[1] ** 2)
    rows = SEEN | True if others else SEEN
    huge = np.where(SEEN[..., np.newaxis], x, 1e4)
    moved = layer(*others, huge, **{mask: SEEN})
    np.testing.assert_array_equal(moved.numpy()[rows], output.numpy()[rows])
    if not others:  # Keras' own mask also masks queries; no cast may lose it
        implicit = layer(keras_privates.with_mask(tf.cast(x, tf.float32), SEEN))
        np.testing.assert_array_equal(implicit._keras_mask, SEEN)
        np.testing.assert_allclose(implicit[rows], output[rows], rtol=1e-5, atol=1e-6)
    # without a visible key the output is the bias, and gradients are 0
    if isinstance(layer, KINDS):
        nothing = np.zeros(output[1].shape)
        if getattr(layer, "use_bias", False):
            nothing += layer.output_dense.bias
        np.testing.assert_array_equal(output[1], nothing)
        assert not tape.gradient(loss, x).numpy().any()

    if name not in ("fourier_mixing", "block_mixing", "big_bird", "big_bird_causal"):
        # padding on the right gives the same as shorter inputs
        seen = np.arange(LENGTH) < [[6], [6]]
        padded = layer(*others, np.where(seen[..., None], x, 1e4), **{mask: seen})
        alone = layer(*others, x[:, :6])
        padded = padded[:, : alone.shape[1]]
        # layers inside of others have their own dtype
        rounding = 1e-9 if isinstance(layer, KINDS) else 1e-5
        np.testing.assert_allclose(padded, alone, rtol=1e-6, atol=rounding)

    if name in ATTENTION and not hasattr(layer, "num_global_tokens"):
        # scores are the weights of values
        call = {mask: SEEN, "return_attention_scores": True}
        again, scores = layer(*others, x, **call)
        np.testing.assert_array_equal(again, output)
        values = layer.project("value", x)
        values = np.repeat(values, layer.num_heads // values.shape[2], axis=2)
        attended = tf.einsum("bnts,bsnv->btnv", scores, values)
        np.testing.assert_allclose(layer.write(attended, None), output, atol=1e-6)
        by_key = np.moveaxis(scores, 3, 1)
        assert by_key[SEEN].any() and not by_key[~SEEN].any()


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in CHOSEN if CASES[name].arguments.get("causal")),
        *("block", "block_conv_causal", "decoder"),
    ],
)
def test_later_tokens_move_nothing(name):
    outputs, first = [], 5  # within a block of two and a block of three
    for later in (1, 1e4):
        keras.utils.set_random_seed(0)  # for the same noise and random blocks
        layer, (x,) = made(name, "float32")
        x[:, first:] *= later
        outputs.append(layer(x, training=True).numpy())
    before, after = outputs
    # hashing sorts tokens, so later ones change the order of sums
    rounding = 1e-5 if isinstance(layer, zoo.ReformerAttention) else 0
    np.testing.assert_allclose(after[:, :first], before[:, :first], 0, rounding)
    assert np.abs(after - before).max() > 1e-2


# Cases that `tests/test_contract.py` compiles without a mask, or not at all.
COMPILED = [
    "local_causal",
    "longformer",
    "big_bird_causal",
    "sinkhorn_causal",
    "fourier_mixing",
    "token_mixing",
    "spatial_gating_causal",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_unknown_shapes_and_xla(name):
    layer, (x,) = made(name, "float32")
    shapes = (None, None, x.shape[-1]), (None, None)
    specs = [tf.TensorSpec(*spec) for spec in zip(shapes, ("float32", "bool"))]

    def masked(x, seen):
        packed = {}
        if layer.supports_segments:
            packed["segment_ids"] = tf.cumsum(tf.cast(x[..., 0] > 0, tf.int32), 1)
        return layer(x, **{CASES[name].mask_name(): seen}, **packed)

    unknown = tf.function(masked, input_signature=specs)
    compiled = tf.function(masked, jit_compile=True)
    for function in (unknown, compiled):
        found = function(tf.constant(x), tf.constant(SEEN))
        assert relative_error(found, masked(x, SEEN)) < 1e-5
    one = x[:1, 1:2], SEEN[:1, 1:2]
    assert relative_error(unknown(*one), masked(*one)) < 1e-5


class InList(keras.Model):
    def __init__(self, inside):
        super().__init__(name="list")
        self.inside = inside

    def call(self, x):
        for layer in self.inside:
            x = layer(x, x)
        return x


def two_layers(make, in_list, names=("first", "second"), **options):
    """Returns a model of two layers of attention, functional or with a list."""
    model = InList([make(**options, dropout=0.5, name=name) for name in names])
    start = keras.Input((None, 8))
    if not in_list:
        return keras.Model(start, model.call(start))
    model(start)
    return model


@pytest.mark.parametrize("in_list", [False, True])
@pytest.mark.parametrize(
    "name", ["attention", "longformer", "big_bird", "linformer", "qk_norm"]
)
@pytest.mark.filterwarnings("ignore:The file has no weights of .*query_key_norm")
def test_files_of_keras_attention_are_loaded(name, in_list):
    """Dense weights load by name; the mechanism's own weights keep their values."""
    sizes = dict(num_heads=4, key_dim=6, use_bias=True, value_dim=None)
    source = two_layers(keras.layers.MultiHeadAttention, in_list, **sizes)
    source.save_weights("keras.weights.h5")
    ours = dict(num_key_value_heads=None, rotary=None)
    model = two_layers(CASES[name].make, in_list, **sizes, **ours)
    drawn = {w.path: w.numpy() for w in model.weights}
    model.load_weights("keras.weights.h5")
    given = {w.path: w.numpy() for w in source.weights}
    for weight in model.weights:
        global_twin = weight.path.replace("_global", "")
        expected = given.get(global_twin, drawn[weight.path])
        np.testing.assert_array_equal(weight, expected, weight.path)
    assert given.keys() <= drawn.keys()
    other = two_layers(CASES[name].make, in_list, ("first", "third"), **sizes, **ours)
    with pytest.raises(ValueError, match="give the attention layers of both models"):
        other.load_weights("keras.weights.h5")


@pytest.mark.parametrize("name", ATTENTION)
def test_what_an_attention_cannot_do_is_said(name):
    layer, (x, *_) = made(name)
    refused = {
        "cannot keep segments": dict(segment_ids=np.zeros(x.shape[:2], int)),
        "has no state": dict(use_causal_mask=True, return_state=True),
        "one key for each query|other than the query|as many queries": dict(
            value=x[:, 1:]
        ),
        "cannot hide later tokens": dict(use_causal_mask=True),
    }
    can = (
        layer.supports_segments,
        layer.supports_state or not layer.supports_causal,
        layer.supports_cross_attention,
        layer.supports_causal,
    )
    for (message, call), able in zip(refused.items(), can, strict=True):
        if not able:
            with pytest.raises(ValueError, match=message):
                layer(x, **call)


def counts_tokens(case):
    if "forget_gate" in case.arguments or case.layer_class.shared_query_key:
        return False  # keys are the queries
    return not case.layer_class.supports_cross_attention or (
        "exact_window" in case.arguments
    )


@pytest.mark.parametrize("name", [n for n in ATTENTION if counts_tokens(CASES[n])])
def test_queries_and_keys_have_the_same_length_also_in_a_graph(name):
    layer, (x, *_) = made(name)
    spec = [tf.TensorSpec((None, None, x.shape[-1]), x.dtype)] * 2
    graph = tf.function(layer.__call__, input_signature=spec)
    np.testing.assert_allclose(graph(x, x + 0), layer(x, x + 0), rtol=1e-9)
    message = f"{layer.counts_tokens} needs one key|as many queries as keys"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(x, x[:, 1:])


BOUNDED = [
    name
    for name in CHOSEN
    if "max_length" in CASES[name].arguments and "causal" not in CASES[name].arguments
]


@pytest.mark.parametrize("name", BOUNDED)
def test_longer_sequences_are_refused(name):
    layer = CASES[name].make()
    layer.build(*((2, None, width) for width in CASES[name].widths))
    widths = CASES[name].widths
    inputs = [tf.ones((2, layer.max_length + 1, width)) for width in widths]
    message = "make it with the max_length of the longest.*longer than max_length"
    with pytest.raises(ValueError, match=message):
        layer(*inputs)
    specs = [tf.TensorSpec((None, None, width)) for width in widths]
    graph = tf.function(layer.__call__, input_signature=specs)
    assert graph(*(x[:, 1:] for x in inputs)).shape == (2, layer.max_length, 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(*inputs)


# Kinds of attention, and a mixer; other layers consist of these.
@pytest.mark.parametrize(
    "name, batch, length",
    [
        ("attention", 0, 5),
        ("attention", 2, 0),
        ("exact", 2, 0),
        ("linformer_of_two_inputs", 2, 0),
        ("longformer_causal", 2, 0),
        ("fourier_mixing", 0, 5),
    ],
)
def test_empty_inputs_give_empty_outputs_and_no_gradients(name, batch, length):
    case = CASES[name]
    layer = case.make()
    layer(*case.inputs())
    inputs = [tf.zeros((batch, length, width)) for width in case.widths]
    shapes = [tf.TensorSpec((None, None, width)) for width in case.widths]

    def differentiated(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = layer(*inputs)
        return output, *tape.gradient(output, [*inputs, *layer.trainable_variables])

    graph = tf.function(differentiated, input_signature=shapes)
    for function in (differentiated, graph):
        output, *gradients = function(*inputs)
        assert output.shape == layer.compute_output_shape(inputs[0].shape)
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, keras.ops.zeros_like(gradient))


# -- Layers that are not built.


SAID = [
    *("call it on data", "call the layer first", "has no state"),
    "has no cross-attention",
]


# One of each class.
@pytest.mark.parametrize(
    "name", {case.layer_class: name for name, case in CASES.items()}.values()
)
def test_public_methods_without_arguments_work_or_say_build_first(name):
    """Calls `get_initial_state(3)`, and all methods without required arguments."""
    case = CASES[name]
    for method in set(dir(case.layer_class)) - set(dir(keras.Model)):
        if method.startswith("_"):
            continue
        try:
            found = getattr(case.make(), method)
            if not inspect.ismethod(found):
                continue
            required = [
                one.name
                for one in inspect.signature(found).parameters.values()
                if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            ]
            if required == ["batch_size"]:
                found(3)
            elif not required:
                found()
        except (AttributeError, ValueError) as error:
            assert any(words in str(error) for words in SAID), (method, error)


def test_attributes_that_no_layer_has_are_told_as_ever():
    layer = CASES["attention"].make()
    assert not hasattr(layer, "query_dense")
    layer.build((None, None, 7))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = layer.nothing
