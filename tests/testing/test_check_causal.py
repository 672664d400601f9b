"""`check_causal` finds who looks ahead, and nobody else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer.testing import check_causal

DIM = 6


def functional(*layers, shape=(None, DIM), dtype="float32"):
    """A functional model that calls functions or layers one after another."""
    x = start = keras.Input(shape, dtype=dtype)
    for layer in layers:
        x = layer(x)
    return keras.Model(start, x)


def attention(**options):
    layer = keras.layers.MultiHeadAttention(2, 4, name="attention")
    return lambda x: layer(x, x, **options)


class Block(keras.layers.Layer):
    """Attention inside a layer of one's own, which is not to blame itself."""

    def __init__(self, use_causal_mask, **kwargs):
        super().__init__(**kwargs)
        self.use_causal_mask = use_causal_mask
        self.inside = keras.layers.MultiHeadAttention(2, 4, name="inside")

    def build(self, shape):
        self.inside.build(shape, shape)

    def call(self, x):
        return x + self.inside(x, x, use_causal_mask=self.use_causal_mask)


class Scaled(keras.layers.Layer):
    """A leak that is small: all tokens are divided by the largest."""

    def call(self, x):
        return x / (1e3 + tf.reduce_max(tf.abs(x)))


def embedded(vocabulary_size=50):
    return keras.layers.Embedding(vocabulary_size, DIM)


RIGHT = {
    "LSTM": lambda: functional(keras.layers.LSTM(4, return_sequences=True)),
    "convolution": lambda: functional(
        keras.layers.Conv1D(4, 3, padding="causal"), keras.layers.BatchNormalization()
    ),
    "attention": lambda: functional(attention(use_causal_mask=True), Block(True)),
    "performer": lambda: functional(
        keras_performer.PerformerAttention(2, 4, causal=True, exact_window=3)
    ),
    "of ids": lambda: keras.Sequential(
        [
            keras.Input((9,), dtype="int32"),
            embedded(),
            keras.layers.GRU(3, return_sequences=True),
        ]
    ),
    "two outputs, one without tokens": lambda: functional(
        lambda x: [
            keras.layers.Dense(2)(x),
            keras.layers.GlobalMaxPooling1D()(x),
        ]
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_models_that_do_not_look_ahead_pass(name):
    check_causal(RIGHT[name]())


def context(x):
    """The mean of all tokens, added to each."""
    mean = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.layers.Add()([x, keras.layers.RepeatVector(13)(mean)])


LEAKS = {
    "attention": lambda: functional(keras.layers.Dense(DIM), attention()),
    "inside": lambda: functional(keras.layers.Dense(DIM), Block(False)),
    "scaled": lambda: functional(Scaled(name="scaled")),
    "backward": lambda: functional(
        keras.layers.LSTM(4, return_sequences=True),
        keras.layers.LSTM(
            4, return_sequences=True, go_backwards=True, name="backward"
        ),
    ),
    "mean": lambda: functional(context, keras.layers.Dense(2)),
    "norm": lambda: functional(
        keras.layers.Dense(4), keras.layers.LayerNormalization(axis=1, name="norm"),
        shape=(9, DIM),
    ),
    "performer": lambda: keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            embedded(),
            keras.layers.GRU(DIM, return_sequences=True),
            keras_performer.PerformerAttention(2, 4, name="performer"),
        ]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAKS)
def test_the_layer_that_looks_ahead_is_named(name):
    with pytest.raises(AssertionError, match=rf"is (\S*/)?{name} \("):
        check_causal(LEAKS[name]())


class Banned(keras.layers.Layer):
    """Adds a channel whose numbers are far below all others."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def call(self, x):
        return tf.concat([x, tf.fill(tf.shape(x[..., :1]), self.value)], -1)


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_huge_numbers_hide_no_leak(value):
    leak = keras.layers.LSTM(4, return_sequences=True, go_backwards=True, name="leak")
    with pytest.raises(AssertionError, match="leak"):
        check_causal(functional(leak, Banned(value)))
    check_causal(functional(keras.layers.Dense(4), Banned(value)))


def test_a_call_of_ones_own_stays():
    layer = keras.layers.Dense(3)
    own = layer.call
    layer.call = twice = lambda x, training=None: 2 * own(x)
    check_causal(functional(layer))
    assert layer.call is twice


def test_ids_may_be_floats():
    ids = np.random.default_rng(0).integers(30, size=(2, 9)).astype("float32")
    check_causal(keras.Sequential([keras.Input((None,)), embedded(30)]), ids)


def test_a_leak_through_an_operation_is_that_of_the_model():
    model = functional(keras.layers.Dense(4), lambda x: keras.ops.flip(x, 1))
    with pytest.raises(AssertionError, match=rf"{model.name} \(Functional\)"):
        check_causal(model)


def test_a_model_is_left_as_it_was():
    model = functional(attention(use_causal_mask=True))
    x = np.ones((1, 3, DIM), "float32")
    before, calls = model(x), [layer.call for layer in model.layers]
    check_causal(model)
    assert calls == [layer.call for layer in model.layers]
    np.testing.assert_array_equal(model(x), before)


def test_given_inputs_are_used_and_only_those_with_tokens_changed():
    seen = []

    class Model(keras.Model):
        def call(self, inputs):
            seen.append({name: np.asarray(x) for name, x in inputs.items()})
            return inputs["ids"] * inputs["scale"]

    ids = np.arange(20).reshape(2, 10)
    inputs = {"ids": ids, "scale": np.full((2, 1), 3)}
    check_causal(Model(), inputs)
    *_, last = seen
    np.testing.assert_array_equal(last["ids"][:, :9], ids[:, :9])
    assert (last["ids"][:, 9] != ids[:, 9]).any() and last["ids"].max() < 20
    assert all((x["scale"] == 3).all() for x in seen)


def test_a_language_model_is_causal_or_not():
    options = dict(num_layers=1, num_heads=2, hidden_dim=8, seed=0)
    ids = np.random.default_rng(0).integers(20, size=(2, 12))
    check_causal(keras_performer.PerformerLM(20, max_length=12, **options), ids)
    model = keras_performer.PerformerLM(20, max_length=12, causal=False, **options)
    with pytest.raises(AssertionError, match="PerformerAttention"):
        check_causal(model, ids)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda: keras.layers.Dense(2), None, "inputs must be given"),
        (lambda: keras.layers.Dense(2), np.ones(3), r"\(B, T, ...\). Received: shape"),
        (lambda: keras.layers.Dense(2), np.ones((2, 1, 3)), "Nothing can be said"),
        (lambda: functional(keras.layers.Flatten()), np.ones((2, 4, DIM)), "Nothing"),
        (lambda: functional(keras.layers.ReLU()), np.zeros((2, 4, DIM)), "Nothing"),
    ],
)
def test_what_cannot_be_checked_is_an_error(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        check_causal(model(), inputs)


@pytest.mark.parametrize("causal", [True, False])
def test_inputs_of_one_number_and_small_vocabularies(causal):
    scale, ids = keras.Input(()), keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(2, 4)(ids) * scale[:, None, None]
    x = keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=causal)
    model = keras.Model([ids, scale], x)
    if causal:
        check_causal(model)
    else:
        with pytest.raises(AssertionError):
            check_causal(model)
