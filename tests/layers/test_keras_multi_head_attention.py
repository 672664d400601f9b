"""Keras' own tests of its attention layers, for ours.

Exact attention, and `PerformerAttention` with exact weights for its estimates, give the
numbers of Keras' `MultiHeadAttention` and `GroupQueryAttention`. What Keras tests of
options that are not here (attention over other axes, `use_gate`, `sliding_window`,
flash attention), and of overriding `_compute_attention`, has no meaning for our layers.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.like_keras import (
    copy_weights,
    grouped_query,
    multi_head,
    pair,
    results,
)

OUR_KINDS = pytest.mark.parametrize("kind", ["exact", "performer"])
BOTH = pytest.mark.parametrize("make", [multi_head, grouped_query])
B, T, S = 2, 5, 7

# shapes of query, value and key; options; arguments of the call
CASES = {
    "self": ([(B, T, 6)] * 2, {}, {}),
    "cross": ([(B, T, 6), (B, S, 9)], {}, {}),
    "a key of its own": ([(B, T, 6), (B, S, 9), (B, S, 8)], {}, {}),
    "no bias": ([(B, T, 6), (B, S, 9)], dict(use_bias=False), {}),
    "value_dim": ([(B, T, 6), (B, S, 9)], dict(value_dim=2), {}),
    "output_shape": ([(B, T, 6)] * 2, dict(output_shape=(3, 2)), {}),
    "one head": ([(B, T, 6)] * 2, dict(num_heads=1), {}),
    "one token": ([(B, 1, 6), (B, 1, 6)], {}, {}),
    "causal": ([(B, T, 6)] * 2, {}, dict(use_causal_mask=True)),
    "dropout, not training": ([(B, T, 6)] * 2, dict(dropout=0.5), dict(training=False)),
    "two of six": ([(B, T, 8)] * 2, {}, dict(use_causal_mask=True)),
    "one of six": ([(B, T, 8), (B, S, 8)], dict(num_key_value_heads=1), {}),
    "all of six": ([(B, T, 8)] * 2, dict(num_key_value_heads=6), {}),
    "grouped, a key of its own": ([(B, T, 8), (B, S, 8), (B, S, 3)], {}, {}),
}
GROUPED = {"two of six", "one of six", "all of six", "grouped, a key of its own"}
WITH_FEATURES = "a key of its own", "causal", "two of six"


@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("exact", case) for case in CASES), *(("performer", c) for c in WITH_FEATURES)],
)
# Keras' layer warns of one token
@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis 3 of a tensor of shape")
def test_numbers_gradients_and_names_are_those_of_keras(kind, case):
    shapes, options, call = CASES[case]
    make = grouped_query if case in GROUPED else multi_head
    expected, layer = pair(make, kind, shapes, **options)

    def described(layer):
        weights = layer.trainable_weights
        return [(w.path.split("/", 1)[1], w.shape, w.dtype) for w in weights]

    assert described(layer) == described(expected)
    assert len(layer.non_trainable_weights) == (0 if kind == "exact" else 3)
    # what dropout draws from
    seeds = [len(one.variables) - len(one.weights) for one in (layer, expected)]
    assert seeds[0] == seeds[1]
    inputs = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    wanted, got = results(expected, inputs, **call), results(layer, inputs, **call)
    assert list(got) == list(wanted)
    for name, right in wanted.items():
        # some gradients are 0: what the bias of the keys adds to all scores of a query
        # changes nothing, and there is nothing to choose from for one token
        error = np.linalg.norm(got[name] - right)
        assert error < 1e-5 * max(np.linalg.norm(right), 1), name
    for name in ("output", "plain output", "value/kernel"):
        assert np.linalg.norm(wanted[name]) > 0.5


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float64", 1e-12),
        ("mixed_bfloat16", 0.02),
        ("float16", 2e-3),
    ],
)
def test_numbers_of_every_dtype(dtype, tolerance):
    shapes = [(B, T, 6)] * 2
    exact, _ = pair(multi_head, "exact", shapes, dtype="float64")
    expected, layer = pair(multi_head, "exact", shapes, dtype=dtype)
    for other in (expected, layer):
        copy_weights(other, exact)
    x = normal(shapes[0])
    call = dict(use_causal_mask=True, return_attention_scores=True)
    wanted = exact(x.astype("float64"), x.astype("float64"), **call)
    for other in (expected, layer):
        x = tf.cast(x, other.compute_dtype)
        for one, right in zip(other(x, x, **call), wanted):
            assert one.dtype == other.compute_dtype
            assert relative_error(one, right) < tolerance


@OUR_KINDS
def test_a_case_that_paper_can_check(kind):
    """Identity matrices: query i meets key i with a score of one, and no other."""
    size = 8
    layer = multi_head(kind, size, size, dtype="float16")
    identity = np.eye(size)[np.newaxis]
    layer.build(identity.shape, identity.shape, identity.shape)
    kernel = np.repeat(np.eye(size)[:, np.newaxis], size, axis=1)
    bias = np.zeros((size, size))
    mean = np.repeat(np.eye(size)[np.newaxis], size, axis=0) / size  # over heads
    weights = [kernel, bias] * 3 + [mean, np.zeros(size)]
    layer.set_weights(weights + layer.get_weights()[8:])
    value = normal((1, size, size), dtype="float16")
    output, scores = layer(identity, value, identity, return_attention_scores=True)
    logits = np.exp(np.eye(size) / np.sqrt(size))
    right = logits / logits.sum(-1, keepdims=True)
    assert relative_error(scores, np.broadcast_to(right, (1, size, size, size))) < 2e-3
    assert relative_error(output, right @ value.astype("float64")) < 5e-3


SHAPES = {
    "no key": ((4, 8), (2, 8), None, None),
    "a key": ((4, 8), (2, 8), (2, 3), None),
    "no key, an output shape": ((4, 8), (2, 8), None, (3, 4)),
    "a key, an output shape": ((4, 8), (2, 8), (2, 3), (1, 5)),
    "an int for a shape": ((4, 8), (2, 8), None, 5),
    "an empty tuple for a shape": ((4, 8), (2, 8), None, ()),
    "an empty list for a shape": ((4, 8), (2, 8), None, []),
    "features of three sizes": ((4, 8), (4, 7), (4, 6), None),
}


@pytest.mark.parametrize("case", SHAPES)
def test_the_computed_shape_is_that_of_the_output(case):
    query, value, key, output_shape = SHAPES[case]
    layer = multi_head("performer", output_shape=output_shape)
    shapes = [(7, *shape) for shape in (query, value, key) if shape is not None]
    computed = layer.compute_output_shape(*shapes)
    assert not layer.built
    assert layer.compute_output_shape(*map(list, shapes)) == computed
    output = layer(*map(normal, shapes))
    assert tuple(output.shape) == tuple(computed)
    sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
    assert tuple(computed) == (7, *query[:-1], *(sizes or (8,)))


def test_a_value_that_does_not_fit_raises_before_a_call_too():
    layer = multi_head("exact")
    wrong = {
        "value and key.*last": [(2, 4, 8), (2, 2, 8), (2, 1, 7)],
        "value must have shape .batch, length": [(2, 3, 7), (2, 3, 5, 7)],
    }
    for message, shapes in wrong.items():
        for refuse in (layer.compute_output_shape, layer.build):
            with pytest.raises(ValueError, match=message):
                refuse(*shapes)


def test_one_initializer_gives_every_kernel_its_own_values():
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    layer = multi_head(
        "performer", num_heads=4, key_dim=4, kernel_initializer=initializer
    )
    layer.build((2, 4, 16), (2, 4, 16))
    kernels = [w.numpy().ravel() for w in layer.trainable_weights if w.name == "kernel"]
    assert len(kernels) == 4
    for i in range(4):
        assert np.std(kernels[i]) > 0.01
        for j in range(i):
            assert abs(np.corrcoef(kernels[i], kernels[j])[0, 1]) < 0.5


TOKENS = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])
OTHER_TOKENS = np.array([[5, 4, 0, 1], [3, 0, 0, 0], [2, 1, 1, 4]])


def test_the_mask_of_the_query_goes_on():
    query = keras.layers.Embedding(4, 8, mask_zero=True)(TOKENS)
    layer = multi_head("exact")
    assert layer.supports_masking
    output = layer(query, normal((3, 3, 8)))
    np.testing.assert_array_equal(output._keras_mask, TOKENS != 0)


@BOTH
@pytest.mark.parametrize("causal", [False, True])
def test_implicit_masks_mean_what_a_full_mask_means_in_keras(make, causal):
    """And no warning is given: warnings are errors."""
    embed = keras.layers.Embedding(6, 8, mask_zero=True)
    tokens = TOKENS if causal else OTHER_TOKENS
    query, value = embed(TOKENS), embed(tokens)
    shapes = [query.shape, value.shape]
    expected, layer = pair(make, "exact", shapes)
    call = dict(use_causal_mask=causal, return_attention_scores=True)
    output, scores = layer(query, value, **call)

    seen = (TOKENS != 0)[:, :, np.newaxis] & (tokens != 0)[:, np.newaxis]
    if causal:
        seen &= np.tril(np.ones(seen.shape[1:], bool))
    arrays = query.numpy(), value.numpy()
    wanted, wanted_scores = expected(
        *arrays, attention_mask=seen, return_attention_scores=True
    )
    rows = seen.any(-1)
    assert relative_error(output.numpy()[rows], wanted.numpy()[rows]) < 1e-5
    by_query, wanted_by_query = (
        np.moveaxis(np.asarray(x), 1, 2) for x in (scores, wanted_scores)
    )
    assert relative_error(by_query[rows], wanted_by_query[rows]) < 1e-5
    # Keras gives the mean of all values where nothing is seen; here that is 0
    assert 0 < rows.sum() < rows.size
    bias = np.broadcast_to(layer.output_dense.bias, output.numpy()[~rows].shape)
    np.testing.assert_array_equal(output.numpy()[~rows], bias)
    assert not by_query[~rows].any()


@pytest.mark.parametrize("causal", [False, True])
def test_every_form_of_a_mask_means_what_it_means_in_keras(causal):
    shapes = [(B, T, 6), (B, T, 6)]
    expected, layer = pair(multi_head, "exact", shapes)
    x = normal(shapes[0])
    keys = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1]], bool)
    seen = np.broadcast_to(keys[:, np.newaxis], (B, T, T))
    if causal:
        seen = seen & np.tril(np.ones((T, T), bool))
    wanted = expected(x, x, attention_mask=seen)
    call = dict(use_causal_mask=causal)
    same_in_keras = (
        dict(attention_mask=keys[:, np.newaxis]),
        dict(attention_mask=keys[:, np.newaxis, np.newaxis]),
        dict(attention_mask=np.tile(keys[:, np.newaxis, np.newaxis], (1, 3, 1, 1))),
        dict(value_mask=keys),
        dict(key_mask=keys),
    )
    for index, mask in enumerate(same_in_keras):
        assert relative_error(expected(x, x, **mask, **call), wanted) < 1e-5
        if index != 2:  # a mask for each head has no meaning here
            assert relative_error(layer(x, x, **mask, **call), wanted) < 1e-5
    # in Keras a mask of queries and keys, which B = T would hide
    with pytest.raises(ValueError, match=r"\(B, 1, S\).*\(T, S\) in Keras.*key_mask"):
        layer(x[:, :B], x[:, :B], attention_mask=np.tril(np.ones((B, B))), **call)
    assert relative_error(layer(x, x, **call), wanted) > 0.05


def test_causal_in_the_constructor_is_causal_in_the_call():
    shapes = [(B, T, 6)] * 2
    expected, layer = pair(multi_head, "exact", shapes)
    causal = multi_head("exact", causal=True)
    causal.build(*shapes)
    copy_weights(causal, expected)
    x = normal(shapes[0])
    wanted = expected(x, x, use_causal_mask=True)
    assert relative_error(causal(x), wanted) < 1e-5


class OneInput(keras.layers.Layer):
    """Self-attention of a layer that needs a query and a value."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)

    def call(self, x):
        return self.attention(x, x)


def model_of(attention):
    query, value = keras.Input((T, 6)), keras.Input((S, 6))
    return keras.Model([query, value], attention(query, value))


def test_lora_trains_saves_and_loads():
    def make():
        return model_of(multi_head("performer", name="attention"))

    model = make()
    layer = model.layers[-1]
    num_trainable, num_frozen = (
        len(weights)
        for weights in (layer.trainable_weights, layer.non_trainable_weights)
    )
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
        dense.enable_lora(2)
    assert len(layer.trainable_weights) == num_trainable + 3
    assert len(layer.non_trainable_weights) == num_frozen + 3
    before = model(PAIR)
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    for _ in range(3):
        model.train_on_batch(PAIR, normal((B, T, 6), 2))
    expected = model(PAIR)
    assert relative_error(expected, before) > 1e-3
    assert np.any(layer.query_dense.lora_kernel_b)

    model.save("lora.keras")
    assert relative_error(keras.saving.load_model("lora.keras")(PAIR), expected) < 1e-6
    model.save_weights("lora.weights.h5")
    plain = make()
    plain.load_weights("lora.weights.h5")
    assert relative_error(plain(PAIR), expected) < 1e-5
    plain.save_weights("plain.weights.h5")
    model = make()
    model.layers[-1].query_dense.enable_lora(2)
    model.load_weights("plain.weights.h5")
    assert relative_error(model(PAIR), expected) < 1e-5


def test_a_map_of_policies_reaches_the_dense_layers():
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("query", "value"):
        policies[f"mine/{name}"] = keras.dtype_policies.get("int8_from_float32")
    layer = multi_head("exact", use_bias=False, dtype=policies, name="mine")
    shapes = [(1, 2, 6)] * 2
    layer.build(*shapes)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    dtypes = [dense.kernel.dtype for dense in dense]
    assert dtypes == ["int8", "float32", "int8", "float32"]
    assert np.isfinite(layer(*map(normal, shapes))).all()


def functional(make):
    query, value = keras.Input((T, 6)), keras.Input((S, 6))
    x = make("first")(query, value)
    return keras.Model([query, value], make("second")(x, value))


def nested(make):
    query, value = keras.Input((T, 6)), keras.Input((S, 6))
    return keras.Model([query, value], functional(make)([query, value]))


class Attributes(keras.Model):
    def __init__(self, make):
        super().__init__()
        self.first = make("first")
        self.others = [make("second")]

    def call(self, inputs):
        query, value = inputs
        x = self.first(query, value)
        for layer in self.others:
            x = layer(x, value)
        return x


def attributes(make):
    model = Attributes(make)
    model(PAIR)
    return model


def blocks(make):
    query = keras.Input((T, 6))
    return keras.Sequential([query, OneInput(make("first")), OneInput(make("second"))])


MODELS = {
    "functional": functional,
    "nested": nested,
    "attributes": attributes,
    "Sequential": blocks,
}
PAIR = [normal((B, T, 6)), normal((B, S, 6), 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, attention, kind",
    [
        ("functional", multi_head, "performer"),
        ("nested", multi_head, "exact"),
        ("attributes", grouped_query, "performer"),
        ("Sequential", multi_head, "performer"),
    ],
)
def test_weights_of_keras_load_by_name(model, attention, kind):
    """Into the same model with our layers, whose random features stay."""
    make, dropout = MODELS[model], 0.5 if model == "functional" else 0.0
    expected = make(lambda name: attention("keras", name=name, dropout=dropout))
    expected.save_weights("keras.weights.h5")
    loaded = make(lambda name: attention(kind, name=name, dropout=dropout))
    features = random_features(loaded)
    assert bool(features) == (kind == "performer")
    inputs = PAIR[0] if model == "Sequential" else PAIR
    assert relative_error(loaded(inputs), expected(inputs)) > 0.05
    loaded.load_weights("keras.weights.h5")
    assert relative_error(loaded(inputs), expected(inputs)) < 1e-5
    for before, after in zip(features, random_features(loaded), strict=True):
        np.testing.assert_array_equal(after, before)


def random_features(model):
    return [w.numpy() for w in model.weights if "random_projection" in w.path]


def test_weights_of_keras_load_into_self_attention_of_a_sequential_model():
    layers = [keras.layers.MultiHeadAttention(2, 4, name="a"), keras.layers.Dense(6)]
    query = keras.Input((T, 6))
    expected = keras.Model(query, layers[1](layers[0](query, query)))
    expected.save_weights("keras.weights.h5")
    layers = [multi_head("performer", 2, 4, name="a"), keras.layers.Dense(6)]
    loaded = keras.Sequential([keras.Input((T, 6)), *layers])
    loaded.load_weights("keras.weights.h5")
    x = normal((B, T, 6))
    assert relative_error(loaded(x), expected(x)) < 1e-5


def test_keras_loads_our_weights_where_layers_are_attributes():
    class OneAttribute(keras.Model):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, inputs):
            return self.attention(*inputs)

    ours, other = (OneAttribute(multi_head(name)) for name in ("exact", "keras"))
    assert relative_error(other(PAIR), ours(PAIR)) > 0.05
    ours.save_weights("ours.weights.h5")
    other.load_weights("ours.weights.h5")
    assert relative_error(other(PAIR), ours(PAIR)) < 1e-5


def test_our_weights_move_to_keras_by_set_weights():
    ours = model_of(multi_head("exact"))
    other = model_of(multi_head("keras"))
    other.set_weights(ours.get_weights()[:8])
    assert relative_error(other(PAIR), ours(PAIR)) < 1e-5


def test_weights_under_another_name_do_not_load():
    model_of(multi_head("keras", name="theirs")).save_weights("keras.weights.h5")
    model = model_of(multi_head("performer", name="ours"))
    before = model.get_weights()
    with pytest.raises(ValueError, match="give the attention layers of both models"):
        model.load_weights("keras.weights.h5")
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
