"""What Keras holds its `MultiHeadAttention` to, held against our layers.

Every promise is first one of Keras' own layer, the control. Exact attention, and
`PerformerAttention` with exact weights for its estimates, give its numbers. What Keras
tests of options that are not here (attention over other axes, `use_gate`,
`sliding_window`, flash attention), and of overriding `_compute_attention`, has no
meaning for our layers.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.like_keras import copy_weights, multi_head, pair, results

EVERY_KIND = pytest.mark.parametrize("kind", ["keras", "exact", "performer"])
OUR_KINDS = pytest.mark.parametrize("kind", ["exact", "performer"])
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
}


@OUR_KINDS
# Keras' layer warns of one token
@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis 3 of a tensor of shape")
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_gradients_are_those_of_keras(kind, case):
    shapes, options, call = CASES[case]
    expected, layer = pair(multi_head, kind, shapes, **options)
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


@OUR_KINDS
def test_weights_have_the_names_shapes_and_order_of_keras(kind):
    for case in ("a key of its own", "no bias", "dropout, not training"):
        shapes, options, _ = CASES[case]
        expected, layer = pair(multi_head, kind, shapes, **options)

        def described(layer):
            weights = layer.trainable_weights
            return [(w.path.split("/", 1)[1], w.shape, w.dtype) for w in weights]

        assert described(layer) == described(expected)
        assert len(layer.non_trainable_weights) == (0 if kind == "exact" else 3)
        count = 4 if options.get("use_bias") is False else 8
        assert len(layer.trainable_weights) == count
        # what dropout draws from
        assert len(layer.variables) - len(layer.weights) == len(
            expected.variables
        ) - len(expected.weights)


@OUR_KINDS
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float64", 1e-12),
        ("mixed_bfloat16", 0.02),
        ("float16", 2e-3),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_numbers_of_every_dtype(kind, dtype, tolerance, causal):
    shapes = [(B, T, 6)] * 2
    exact, _ = pair(multi_head, kind, shapes, dtype="float64")
    expected, layer = pair(multi_head, kind, shapes, dtype=dtype)
    for other in (expected, layer):
        copy_weights(other, exact)
    x = normal(shapes[0])
    call = dict(use_causal_mask=causal, return_attention_scores=True)
    wanted = exact(x.astype("float64"), x.astype("float64"), **call)
    for other in (expected, layer):
        x = tf.cast(x, other.compute_dtype)
        for one, right in zip(other(x, x, **call), wanted):
            assert one.dtype == other.compute_dtype
            assert relative_error(one, right) < tolerance


@EVERY_KIND
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


@EVERY_KIND
@pytest.mark.parametrize("case", SHAPES)
def test_the_computed_shape_is_that_of_the_output(kind, case):
    query, value, key, output_shape = SHAPES[case]
    layer = multi_head(kind, output_shape=output_shape)
    shapes = [(7, *shape) for shape in (query, value, key) if shape is not None]
    computed = layer.compute_output_shape(*shapes)
    assert not layer.built
    assert layer.compute_output_shape(*map(list, shapes)) == computed
    output = layer(*map(normal, shapes))
    assert tuple(output.shape) == tuple(computed)
    sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
    assert tuple(computed) == (7, *query[:-1], *(sizes or (8,)))


@EVERY_KIND
def test_a_value_and_a_key_that_do_not_fit_raise(kind):
    layer, shapes = multi_head(kind), [(2, 4, 8), (2, 2, 8), (2, 1, 7)]
    for refuse in (layer.compute_output_shape, layer.build):
        with pytest.raises(ValueError, match="value.*key.*last"):
            refuse(*shapes)
    with pytest.raises(ValueError, match="value.*key.*last"):
        layer(*map(normal, shapes))


@OUR_KINDS
def test_a_value_of_another_rank_raises_before_a_call_too(kind):
    layer = multi_head(kind)
    for refuse in (layer.compute_output_shape, layer.build):
        with pytest.raises(ValueError, match="value must have shape .batch, length"):
            refuse((2, 3, 7), (2, 3, 5, 7))


@EVERY_KIND
@pytest.mark.parametrize("output_shape", [8.0, 0.5])
def test_an_output_shape_that_is_none_raises(kind, output_shape):
    with pytest.raises(ValueError, match="output_shape"):
        multi_head(kind, output_shape=output_shape)


@EVERY_KIND
def test_one_initializer_gives_every_kernel_its_own_values(kind):
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    layer = multi_head(kind, num_heads=4, key_dim=4, kernel_initializer=initializer)
    layer.build((2, 4, 16), (2, 4, 16))
    kernels = [w.numpy().ravel() for w in layer.trainable_weights if w.name == "kernel"]
    assert len(kernels) == 4
    for i in range(4):
        assert np.std(kernels[i]) > 0.01
        for j in range(i):
            assert abs(np.corrcoef(kernels[i], kernels[j])[0, 1]) < 0.5


TOKENS = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])
OTHER_TOKENS = np.array([[5, 4, 0, 1], [3, 0, 0, 0], [2, 1, 1, 4]])


@EVERY_KIND
def test_the_mask_of_the_query_goes_on(kind):
    query = keras.layers.Embedding(4, 8, mask_zero=True)(TOKENS)
    layer = multi_head(kind)
    assert layer.supports_masking
    output = layer(query, normal((3, 3, 8)))
    np.testing.assert_array_equal(output._keras_mask, TOKENS != 0)


@OUR_KINDS
@pytest.mark.parametrize("causal", [False, True])
def test_implicit_masks_mean_what_a_full_mask_means_in_keras(kind, causal):
    """And no warning is given: warnings are errors."""
    embed = keras.layers.Embedding(6, 8, mask_zero=True)
    tokens = TOKENS if causal else OTHER_TOKENS
    query, value = embed(TOKENS), embed(tokens)
    shapes = [query.shape, value.shape]
    expected, layer = pair(multi_head, kind, shapes)
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


@OUR_KINDS
@pytest.mark.parametrize("causal", [False, True])
def test_every_form_of_a_mask_means_what_it_means_in_keras(kind, causal):
    shapes = [(B, T, 6), (B, T, 6)]
    expected, layer = pair(multi_head, kind, shapes)
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


@EVERY_KIND
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_weight_falls_on_the_future(kind, dropout):
    layer = multi_head(kind, dropout=dropout)
    x = normal((1, 6, 8))
    output, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    future = np.triu(np.ones((6, 6), bool), k=1)
    assert not scores.numpy()[..., future].any()
    assert relative_error(np.sum(scores, -1), np.ones(scores.shape[:-1])) < 1e-6
    # and a token changes nothing before it
    x[:, 4] *= -3
    changed = layer(x, x, use_causal_mask=True)
    assert relative_error(changed[:, :4], output[:, :4]) < 1e-6
    assert relative_error(changed[:, 4:], output[:, 4:]) > 0.05


@OUR_KINDS
def test_causal_in_the_constructor_is_causal_in_the_call(kind):
    shapes = [(B, T, 6)] * 2
    expected, layer = pair(multi_head, kind, shapes)
    causal = multi_head(kind, causal=True)
    causal.build(*shapes)
    copy_weights(causal, expected)
    x = normal(shapes[0])
    wanted = expected(x, x, use_causal_mask=True)
    assert relative_error(causal(x), wanted) < 1e-5


@EVERY_KIND
@pytest.mark.parametrize("which", ["kernel", "bias"])
def test_constraints_reach_every_dense_layer(kind, which):
    layer = multi_head(kind, **{f"{which}_constraint": "non_neg"})
    model = keras.Sequential([keras.Input((T, 6)), OneInput(layer)])
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    model.fit(normal((B, T, 6)), normal((B, T, 6), 1), verbose=0)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    other = "bias" if which == "kernel" else "kernel"
    for one in dense:
        assert isinstance(getattr(one, which).constraint, keras.constraints.NonNeg)
        assert getattr(one, other).constraint is None
        assert np.min(getattr(one, which)) == 0
        assert np.min(getattr(one, other)) < 0


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


@EVERY_KIND
def test_lora_trains_saves_and_loads(kind):
    def make():
        return model_of(multi_head(kind, name="attention"))

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
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(PAIR, normal((B, T, 6), 2), epochs=3, verbose=0)
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


@EVERY_KIND
@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3, 5)])
def test_symbolic_scores_have_the_real_shapes(kind, shape):
    layer = multi_head(kind, num_heads=4, key_dim=2)
    symbolic = layer(
        *(keras.Input(batch_shape=shape) for _ in range(2)),
        return_attention_scores=True,
    )
    real = layer(normal(shape), normal(shape), return_attention_scores=True)
    assert len(symbolic) == len(real) == 2
    for one, other in zip(symbolic, real):
        assert tuple(one.shape) == tuple(other.shape)
        assert one.dtype == keras.backend.standardize_dtype(other.dtype)


@EVERY_KIND
def test_a_map_of_policies_reaches_the_dense_layers(kind):
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("query", "value"):
        policies[f"mine/{name}"] = keras.dtype_policies.get("int8_from_float32")
    layer = multi_head(kind, use_bias=False, dtype=policies, name="mine")
    shapes = [(1, 2, 6)] * 2
    layer.build(*shapes)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    dtypes = [dense.kernel.dtype for dense in dense]
    assert dtypes == ["int8", "float32", "int8", "float32"]
    assert np.isfinite(layer(*map(normal, shapes))).all()


@pytest.mark.slow
@EVERY_KIND
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_weights_give_nearly_the_same(kind):
    layer = multi_head(kind, use_bias=False)
    before = layer(*PAIR)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    for one in dense:
        one.quantize("int8")
        assert one.kernel.dtype == "int8"
    assert 0 < relative_error(layer(*PAIR), before) < 0.05


def functional(make):
    query, value = keras.Input((T, 6)), keras.Input((S, 6))
    x = make("first")(query, value)
    x = keras.layers.LayerNormalization(name="norm")(x)
    return keras.Model([query, value], make("second")(x, value))


def nested(make):
    query, value = keras.Input((T, 6)), keras.Input((S, 6))
    return keras.Model([query, value], functional(make)([query, value]))


class Attributes(keras.Model):
    def __init__(self, make):
        super().__init__()
        self.first = make("first")
        self.others = [make("second"), make("third")]

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
@OUR_KINDS
@pytest.mark.parametrize("model", MODELS)
def test_weights_of_keras_load_by_name(kind, model):
    """Into the same model with our layers, whose random features stay."""
    make, dropout = MODELS[model], 0.5 if model == "functional" else 0.0
    expected = make(lambda name: multi_head("keras", name=name, dropout=dropout))
    expected.save_weights("keras.weights.h5")
    loaded = make(lambda name: multi_head(kind, name=name, dropout=dropout))
    features = random_features(loaded)
    assert bool(features) == (kind == "performer")
    inputs = PAIR[0] if model == "Sequential" else PAIR
    assert relative_error(loaded(inputs), expected(inputs)) > 0.05
    loaded.load_weights("keras.weights.h5")
    assert relative_error(loaded(inputs), expected(inputs)) < 1e-5
    for before, after in zip(features, random_features(loaded), strict=True):
        np.testing.assert_array_equal(after, before)
    # and what was loaded is a file of its own kind again
    loaded.save_weights("ours.weights.h5")
    again = make(lambda name: multi_head(kind, name=name, dropout=dropout))
    again.load_weights("ours.weights.h5")
    for one, other in zip(again.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


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


@OUR_KINDS
def test_keras_loads_our_weights_where_layers_are_attributes(kind):
    class OneAttribute(keras.Model):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, inputs):
            return self.attention(*inputs)

    ours, other = (OneAttribute(multi_head(name)) for name in (kind, "keras"))
    assert relative_error(other(PAIR), ours(PAIR)) > 0.05
    ours.save_weights("ours.weights.h5")
    other.load_weights("ours.weights.h5")
    assert relative_error(other(PAIR), ours(PAIR)) < 1e-5


@OUR_KINDS
def test_our_weights_move_to_keras_by_set_weights(kind):
    ours = model_of(multi_head(kind))
    other = model_of(multi_head("keras"))
    other.set_weights(ours.get_weights()[:8])
    assert relative_error(other(PAIR), ours(PAIR)) < 1e-5


@OUR_KINDS
def test_weights_under_another_name_do_not_load(kind):
    model_of(multi_head("keras", name="theirs")).save_weights("keras.weights.h5")
    model = model_of(multi_head(kind, name="ours"))
    before = model.get_weights()
    with pytest.raises(ValueError, match="give the attention layers of both models"):
        model.load_weights("keras.weights.h5")
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
