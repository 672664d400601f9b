"""Promises of layers of all cases: masks, scores, files, XLA, what is not built."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, zoo
from keras_performer.layers import AttentionLayer, MixingLayer, keras_privates
from keras_performer.testing import check_causal
from tests.cases import CASES, OTHER_LM
from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.twins import randomize


def kind_of(case):
    """Differences between cases that have other code for masks."""
    options = case.arguments
    return case.layer_class, options.get("causal"), options.get("exact_window")


# One of each kind: the last, with one input if there is one.
CHOSEN = {
    kind_of(case): name
    for name, case in sorted(CASES.items(), key=lambda x: -len(x[1].widths))
    if issubclass(case.layer_class, (AttentionLayer, MixingLayer))
}
LENGTH = 9
# Holes and padding to the right in the first, and in the second nothing that is seen.
SEEN = np.array([[0, 1, 1, 0, 1, 1, 1, 0, 0], [0] * LENGTH], bool)


def made(name, dtype="float64"):
    """A layer of a case, whose weights count, and an array for each of its inputs."""
    case = CASES[name]
    layer = case.make(dtype=dtype)
    layer.build(*((2, None, width) for width in case.widths))
    randomize(layer)
    shapes = [(2, LENGTH, width) for width in case.widths]
    return layer, [normal(shape, i, dtype=dtype) for i, shape in enumerate(shapes)]


def call(layer, inputs, seen, **options):
    name = "mask" if isinstance(layer, MixingLayer) else "key_mask"
    return layer(*inputs, **{name: seen}, **options)


@pytest.mark.parametrize("name", CHOSEN.values())
def test_hidden_tokens_are_not_there(name):
    """However large, whatever they would give, and though nothing else is seen."""
    layer, inputs = made(name)
    x = tf.constant(inputs[-1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = call(layer, [*inputs[:-1], x], SEEN)
        loss = tf.reduce_sum(output[1] ** 2)
    rows = SEEN if len(inputs) == 1 else SEEN | True
    huge = np.where(SEEN[..., np.newaxis], inputs[-1], 1e4)
    moved = call(layer, [*inputs[:-1], huge], SEEN)
    np.testing.assert_array_equal(moved.numpy()[rows], output.numpy()[rows])
    if len(inputs) == 1:  # Keras' own mask is one of queries and keys
        implicit = layer(keras_privates.with_mask(tf.constant(inputs[0]), SEEN))
        np.testing.assert_array_equal(implicit._keras_mask, SEEN)
        np.testing.assert_array_equal(implicit.numpy()[SEEN], output.numpy()[SEEN])
    # where no key is seen there is the bias alone, and nothing to learn
    nothing = np.zeros(output[1].shape)
    if getattr(layer, "use_bias", False):
        nothing += layer.output_dense.bias
    np.testing.assert_array_equal(output[1], nothing)
    assert not tape.gradient(loss, x).numpy().any()

    if layer.cost != "L log L" and not isinstance(layer, zoo.BigBirdAttention):
        # all others do as well without padding to the right
        seen = np.arange(LENGTH) < [[6], [6]]
        padded = call(layer, [*inputs[:-1], np.where(seen[..., None], x, 1e4)], seen)
        alone = layer(*inputs[:-1], inputs[-1][:, :6])
        padded = padded[:, : alone.shape[1]]
        np.testing.assert_allclose(padded, alone, rtol=1e-6, atol=1e-9)

    if isinstance(layer, AttentionLayer) and not hasattr(layer, "num_global_tokens"):
        # scores are the weights of values
        again, scores = call(layer, inputs, SEEN, return_attention_scores=True)
        np.testing.assert_array_equal(again, output)
        values = layer.project("value", x)
        values = np.repeat(values, layer.num_heads // values.shape[2], axis=2)
        attended = tf.einsum("bnts,bsnv->btnv", scores, values)
        np.testing.assert_allclose(layer.write(attended, None), output, atol=1e-6)
        by_key = np.moveaxis(scores, 3, 1)
        assert by_key[SEEN].any() and not by_key[~SEEN].any()


@pytest.mark.parametrize("name", [name for key, name in CHOSEN.items() if key[1]])
def test_later_tokens_move_nothing(name):
    layer, (x,) = made(name, "float32")
    first = 5  # inside of blocks of two and of three
    later = np.where(np.arange(LENGTH)[:, np.newaxis] < first, x, 1e4)
    before, after = layer(x).numpy(), layer(later.astype("float32")).numpy()
    # hashing sorts tokens, so that later ones change the order of sums
    rounding = 1e-5 if isinstance(layer, zoo.ReformerAttention) else 0
    np.testing.assert_allclose(after[:, :first], before[:, :first], 0, rounding)
    assert np.abs(after - before).max() > 1e-2


# Those that `tests/test_contract.py` compiles without a mask, or not at all.
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
        return call(layer, [x], seen, **packed)

    unknown = tf.function(masked, input_signature=specs)
    compiled = tf.function(masked, jit_compile=True)
    for function in (unknown, compiled):
        found = function(tf.constant(x), tf.constant(SEEN))
        assert relative_error(found, masked(x, SEEN)) < 1e-5
    one = x[:1, 1:2], SEEN[:1, 1:2]
    assert relative_error(unknown(*one), masked(*one)) < 1e-5


@pytest.mark.parametrize("name", ["longformer", "big_bird", "linformer"])
def test_files_of_keras_attention_are_loaded(name):
    """The dense weights by their names; what a mechanism adds stays as it was drawn."""
    inputs = keras.Input((None, 8))
    source = keras.layers.MultiHeadAttention(4, 6, name="attention")
    keras.Model(inputs, source(inputs, inputs)).save_weights("keras.weights.h5")
    sizes = dict(num_heads=4, key_dim=6, use_bias=True, num_key_value_heads=None)
    layer = CASES[name].make(**sizes, value_dim=None, rotary=None, name="attention")
    model = keras.Model(inputs, layer(inputs))
    drawn = {w.path: w.numpy() for w in layer.weights}
    model.load_weights("keras.weights.h5")
    given = {w.path: w.numpy() for w in source.weights}
    for weight in layer.weights:
        global_twin = weight.path.replace("_global", "")
        expected = given.get(global_twin, drawn[weight.path])
        np.testing.assert_array_equal(weight, expected, weight.path)
    assert {"attention/value/kernel", "attention/attention_output/bias"} <= set(drawn)


def test_a_model_of_all_causal_attention_trains_and_does_not_look_ahead():
    """Each weight of each block moves in a step."""
    sizes = dict(num_heads=2, key_dim=4, use_bias=False, causal=True)
    zoo_of_all = [
        zoo.LongformerAttention(**sizes, sliding_window=2, num_global_tokens=3),
        zoo.BigBirdAttention(**sizes, block_size=2),
        zoo.SinkhornAttention(**sizes, block_size=3, max_length=16, noise=0.5),
        zoo.ReformerAttention(**sizes, num_hashes=2, num_buckets=2, sliding_window=9),
        zoo.SynthesizerAttention(**sizes, max_length=16),
        zoo.SpatialGatingUnit(16, 8, causal=True),
    ]
    depth = len(zoo_of_all)
    options = {**OTHER_LM, "hidden_dim": 8, "max_length": 16, "num_layers": depth}
    model = PerformerLM(**{**options, "attention": zoo_of_all, "vocabulary_size": 11})
    ids = np.random.default_rng(0).integers(0, 11, (2, 13))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
    check_causal(model, ids)
    before = [w.numpy() for w in model.trainable_weights]
    assert np.isfinite(model.train_on_batch(ids, ids))
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(weight - old).max() > 1e-9, weight.path


@pytest.mark.parametrize(
    "name",
    [name for kind, name in CHOSEN.items() if issubclass(kind[0], AttentionLayer)],
)
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


BOUNDED = [
    name
    for name in CHOSEN.values()
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


# One of each attention and a mixer; all others are made of these.
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
    "attends to its own sequence alone",
]


# One of each class.
@pytest.mark.parametrize(
    "name", {case.layer_class: name for name, case in CASES.items()}.values()
)
def test_public_methods_without_arguments_work_or_say_build_first(name):
    """`get_initial_state` takes a batch size; all else that has no other arguments."""
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


def test_a_state_before_build_says_what_to_do():
    layer = CASES["block_conv_causal"].make()
    with pytest.raises(AttributeError, match=r"must be built first: call it on data"):
        layer.get_initial_state(3)
    layer.build((None, None, 7))
    assert layer.get_initial_state(3)["convolution"]["inputs"].shape == (3, 2, 7)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = layer.attention.nothing
    assert not hasattr(CASES["attention"].make(), "query_dense")
