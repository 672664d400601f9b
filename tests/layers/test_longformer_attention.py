"""`LongformerAttention` beside its definition, query by query, in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import ExactAttention, LocalAttention
from keras_performer.zoo import LongformerAttention
from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.twins import (
    assert_is_twin,
    heads,
    randomize,
    softmax,
    weights_of,
    written,
)


def made(num_heads=4, key_dim=3, random=True, **options):
    options.setdefault("num_global_tokens", 3)
    layer = LongformerAttention(num_heads, key_dim, **options)
    layer.build((2, None, 7))
    if random:
        randomize(layer)
    return layer


def first_seen(seen, count):
    """The first `count` tokens of each sequence that are seen."""
    is_global = np.zeros_like(seen)
    for row, mask in zip(is_global, seen):
        row[np.flatnonzero(mask)[:count]] = True
    return is_global


def twin_of(layer):
    """The output of a layer, as `tests.layers.twins` takes it."""

    def output(weights, x, key_mask=None, global_mask=None, scores=False):
        batch, length, _ = x.shape
        seen = np.ones((batch, length), bool) if key_mask is None else key_mask
        if global_mask is None:
            global_mask = first_seen(seen, layer.num_global_tokens)
        group = layer.num_heads // layer.num_key_value_heads
        local, of_global = {}, {}
        for name in ("query", "key", "value"):
            local[name] = heads(weights, name, x)
            of_global[name] = heads(weights, f"{name}_global", x)
        attended = np.zeros((batch, length, layer.num_heads, layer.value_dim))
        matrix = np.zeros((batch, layer.num_heads, length, length))
        for b in range(batch):
            for i in range(length):
                mine = of_global if global_mask[b, i] else local
                sees = [
                    seen[b, j]
                    and (j <= i or not layer.causal)
                    and (
                        abs(i - j) < layer.sliding_window
                        or global_mask[b, i]
                        or global_mask[b, j]
                    )
                    for j in range(length)
                ]
                for n in range(layer.num_heads):
                    keys = mine["key"][b, :, n // group]
                    logits = keys @ mine["query"][b, i, n] / layer.key_dim**0.5
                    matrix[b, n, i] = softmax(logits, sees)
                    values = mine["value"][b, :, n // group]
                    attended[b, i, n] = matrix[b, n, i] @ values
        return matrix if scores else written(weights, attended)

    return output


def masks(length, seed=0):
    """Keys that are seen, and up to three global tokens, some of them hidden."""
    random = np.random.default_rng(seed)
    seen = random.random((2, length)) < 0.7
    is_global = np.zeros((2, length), bool)
    for row, count in zip(is_global, (3, 1)):
        row[random.permutation(length)[:count]] = True
    return seen, is_global


# -- What it computes.


@pytest.mark.parametrize(
    "length, window, causal",
    [(1, 2, False), (2, 1, True), (13, 3, False), (13, 3, True), (17, 40, False)],
)
def test_it_is_its_definition_with_all_gradients(length, window, causal):
    layer = made(
        sliding_window=window,
        causal=causal,
        num_key_value_heads=2,
        value_dim=5,
        dtype="float64",
    )
    seen, is_global = masks(length)
    x = normal((2, length, 7), 1)
    assert_is_twin(layer, twin_of(layer), [x], key_mask=seen, global_mask=is_global)


@pytest.mark.parametrize("causal", [False, True])
def test_of_several_chunks(causal):
    """Local attention takes 64 tokens at a time."""
    layer = made(2, 3, sliding_window=30, causal=causal, dtype="float64")
    seen, is_global = masks(151, seed=1)
    x = normal((2, 151, 7), 1, dtype="float64")
    call = {"key_mask": seen, "global_mask": is_global}
    expected = twin_of(layer)(weights_of(layer), x, **call)
    assert relative_error(layer(x, **call), expected) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_scores(causal):
    layer = made(sliding_window=3, causal=causal, num_key_value_heads=2)
    seen, is_global = masks(13)
    x = normal((2, 13, 7), 1)
    for call in ({"key_mask": seen}, {"global_mask": is_global}):
        _, scores = layer(x, return_attention_scores=True, **call)
        expected = twin_of(layer)(weights_of(layer), x, scores=True, **call)
        np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_without_global_tokens_it_is_local_attention(causal):
    x, seen = normal((2, 90, 7), 1), masks(90)[0]
    local = LocalAttention(4, 3, sliding_window=5, causal=causal)
    none = made(sliding_window=5, causal=causal, num_global_tokens=0)
    room = made(sliding_window=5, causal=causal, num_global_tokens=2)
    local.build(x.shape)
    weights = none.get_weights()
    local.set_weights(weights)  # there are no others
    expected = local(x, key_mask=seen)
    np.testing.assert_array_equal(none(x, key_mask=seen), expected)
    room.set_weights(weights + room.get_weights()[len(weights) :])
    got = room(x, key_mask=seen, global_mask=np.zeros((2, 90), bool))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"rotary": True, "qk_norm": True}])
def test_a_new_one_that_sees_all_is_exact_attention(options):
    """The dense layers of global tokens start as copies."""
    x, (seen, is_global) = normal((2, 13, 8), 1), masks(13)
    bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
    options = {**options, "causal": True, "bias_initializer": bias}
    layer = LongformerAttention(2, 4, sliding_window=13, num_global_tokens=3, **options)
    exact = ExactAttention(2, 4, **options)
    for each in layer, exact:
        each.build(x.shape)
    exact.set_weights(
        [w for w in layer.get_weights()][: 8 + bool(options.get("qk_norm"))]
    )
    got = layer(x, key_mask=seen, global_mask=is_global)
    np.testing.assert_allclose(got, exact(x, key_mask=seen), atol=1e-5)


def test_the_first_tokens_that_are_seen_are_global():
    """So that padding on the left is as if it were not there."""
    layer = made(sliding_window=2, num_global_tokens=2)
    x, seen = normal((1, 12, 7), 1), np.arange(12)[None] >= 5
    alone = layer(x[:, 5:])
    np.testing.assert_allclose(layer(x, key_mask=seen)[:, 5:], alone, atol=1e-5)
    named = np.arange(12)[None] // 2 == 0
    got = layer(x, global_mask=named)
    np.testing.assert_allclose(layer(x), got, atol=1e-6)
    other = layer(x, global_mask=named[:, ::-1])
    assert relative_error(other, got) > 0.1


# -- Weights of its own, which start as copies.


def pairs_of(layer):
    for name in ("query", "key", "value"):
        local = getattr(layer, f"{name}_dense").get_weights()
        yield local, getattr(layer, f"_{name}_global_dense").get_weights()


def are_copies(layer):
    equal = [
        np.array_equal(x, y)
        for local, of_global in pairs_of(layer)
        for x, y in zip(local, of_global, strict=True)
    ]
    assert all(equal) or not any(equal)
    return all(equal)


BIAS = keras.initializers.RandomNormal(stddev=0.5)
OPTIONS = dict(sliding_window=2, num_global_tokens=2, bias_initializer=BIAS)


class Around(keras.Model):
    """Layer without `build`: Keras makes its weights inside of a trace of the call."""

    def __init__(self):
        super().__init__(dtype="mixed_bfloat16")
        self.attention = LongformerAttention(2, 3, dtype=self.dtype_policy, **OPTIONS)

    def call(self, x):
        return self.attention(x)


def of_a_subclass_that_is_traced():
    model = Around()
    model(keras.Input((None, 7)))
    return model.attention


class Halfway(Around):
    """Layer that makes its weights in its call, where reading casts them."""

    def build(self, input_shape):
        pass


def of_a_subclass_that_is_called():
    model = Halfway()
    model(normal((2, 5, 7)))
    return model.attention


def of_a_graph():
    layer = LongformerAttention(2, 3, **OPTIONS)
    tf.function(layer.__call__)(tf.constant(normal((2, 5, 7))))
    return layer


def of_a_model_that_xla_compiles():
    """Keras makes the weights inside of the compiled function."""
    layer = LongformerAttention(2, 3, **OPTIONS)
    model = keras.Sequential([layer])
    model.compile(jit_compile=True)
    model.predict(normal((2, 5, 7)), verbose=0)
    return layer


def of_a_clone():
    inputs = keras.Input((None, 7))
    model = keras.Model(inputs, LongformerAttention(2, 3, **OPTIONS)(inputs))
    randomize(model)
    return keras.models.clone_model(model).layers[-1]


@pytest.mark.parametrize(
    "make",
    [
        of_a_subclass_that_is_traced,
        of_a_subclass_that_is_called,
        of_a_graph,
        of_a_model_that_xla_compiles,
        of_a_clone,
    ],
)
def test_what_global_tokens_see_starts_as_a_copy(make):
    layer = make()
    assert are_copies(layer)
    for local, _ in pairs_of(layer):
        assert all(np.std(x) > 0.1 for x in local)
    layer.query_dense.kernel.assign_add(tf.ones_like(layer.query_dense.kernel))
    (query, of_global), *_ = pairs_of(layer)
    assert not np.array_equal(query[0], of_global[0])


def model_around(kind, **options):
    inputs = keras.Input((None, 7))
    attention = kind(2, 3, bias_initializer=BIAS, name="attention", **options)
    return keras.Model(inputs, attention(inputs))


def test_trained_weights_come_back_from_files():
    own = dict(sliding_window=2, num_global_tokens=2)
    model, x = model_around(LongformerAttention, **own), normal((2, 9, 7), 1)
    randomize(model)
    assert not are_copies(model.layers[-1])
    model.save_weights("own.weights.h5")
    other = model_around(LongformerAttention, **own)
    other.load_weights("own.weights.h5")
    np.testing.assert_array_equal(other(x), model(x))


# -- What it refuses.


def test_more_global_tokens_than_there_is_room_for_raise():
    layer, x = made(sliding_window=2, num_global_tokens=2), normal((2, 5, 7), 1)
    mask = np.array([[1, 0, 0, 0, 0], [0, 1, 1, 1, 0]], bool)
    graph = tf.function(lambda x, mask: layer(x, global_mask=mask))
    for call in (lambda x, mask: layer(x, global_mask=mask), graph):
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most num_global"):
            call(tf.constant(x), tf.constant(mask))


def test_a_mask_that_does_not_fit_raises():
    for room, length, message in (
        (0, 5, "with num_global_tokens, the most"),
        (1, 4, r"global_mask must have shape \(2, 5\)"),
    ):
        layer = LongformerAttention(2, 4, sliding_window=3, num_global_tokens=room)
        with pytest.raises(ValueError, match=message):
            layer(normal((2, 5, 7)), global_mask=np.ones((2, length), bool))
