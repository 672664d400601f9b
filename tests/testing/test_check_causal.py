"""`check_causal` finds layers that use later tokens, and no others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer.testing import check_causal

DIM = 6


def functional(*layers, shape=(None, DIM), dtype="float32", name=None):
    """Returns a functional model that calls functions or layers in sequence."""
    x = start = keras.Input(shape, dtype=dtype)
    for layer in layers:
        x = layer(x)
    return keras.Model(start, x, name=name)


def of_ids(*layers):
    return functional(embedded(), *layers, shape=(None,), dtype="int32")


def embedded(vocabulary_size=50):
    return keras.layers.Embedding(vocabulary_size, DIM)


def recurrent(**options):
    return keras.layers.LSTM(DIM, return_sequences=True, **options)


class Block(keras.layers.Layer):
    """Custom layer with attention inside, which alone may be at fault."""

    def __init__(self, use_causal_mask, **kwargs):
        super().__init__(**kwargs)
        self.use_causal_mask = use_causal_mask
        self.inside = keras.layers.MultiHeadAttention(2, 4, name="inside")

    def build(self, shape):
        self.inside.build(shape, shape)

    def call(self, x):
        return x + self.inside(x, x, use_causal_mask=self.use_causal_mask)


class Scaled(keras.layers.Layer):
    """Layer with a small leak: it divides by 1000 plus the largest number."""

    def call(self, x):
        return x / (1e3 + tf.reduce_max(tf.abs(x)))


class Banned(keras.layers.Layer):
    """Layer that adds a channel with numbers far below all others."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def call(self, x):
        return tf.concat([x, tf.fill(tf.shape(x[..., :1]), self.value)], -1)


def language_model(causal):
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, max_length=12)
    return keras_performer.PerformerLM(20, causal=causal, seed=0, **sizes)


def small_vocabulary(causal):
    """Returns a model of ids and a number for each sequence."""
    scale, ids = keras.Input(()), keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(2, 4)(ids) * scale[:, None, None]
    x = keras.layers.MultiHeadAttention(2, 4, name="small")(
        x, x, use_causal_mask=causal
    )
    return keras.Model([ids, scale], x)


IDS = np.random.default_rng(0).integers(20, size=(2, 12))
dense, performer = keras.layers.Dense, keras_performer.PerformerAttention


def context(x):
    """Adds the mean of all tokens to each token."""
    mean = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.layers.Add()([x, keras.layers.RepeatVector(13)(mean)])


def convolution():
    return keras.layers.Conv1D(4, 3, padding="causal")


def leak():
    return recurrent(go_backwards=True, name="leak")


def norm():
    return keras.layers.LayerNormalization(axis=1, name="norm")


def two_outputs(x):
    """Returns two outputs, one without a token axis."""
    return [dense(2)(x), keras.layers.GlobalMaxPooling1D()(x)]


@pytest.mark.parametrize(
    "make, inputs",
    [
        (lambda: functional(convolution(), keras.layers.BatchNormalization()), None),
        (lambda: functional(Block(True)), None),
        (lambda: functional(performer(2, 4, causal=True, exact_window=3)), None),
        (lambda: of_ids(recurrent()), None),
        (lambda: functional(embedded(30), shape=(None,)), IDS + 0.0),  # ids as floats
        (lambda: functional(two_outputs), None),
        (lambda: functional(dense(4), Banned(-1e9)), None),
        (lambda: functional(dense(4), Banned(-np.inf)), None),
        (lambda: language_model(True), IDS),
        (lambda: small_vocabulary(True), None),
    ],
)
def test_models_that_do_not_look_ahead_pass(make, inputs):
    check_causal(make(), inputs)


LEAKS = {
    "inside": lambda: functional(dense(DIM), Block(False)),
    "scaled": lambda: functional(Scaled(name="scaled")),
    "huge/leak": lambda: functional(leak(), Banned(-1e9)),
    "infinite/leak": lambda: functional(leak(), Banned(-np.inf)),
    "mean": lambda: functional(context, dense(2)),
    "norm": lambda: functional(dense(4), norm(), shape=(9, DIM)),
    "performer": lambda: of_ids(recurrent(), performer(2, 4, name="performer")),
    "small": lambda: small_vocabulary(False),
    "flipping": lambda: functional(lambda x: keras.ops.flip(x, 1), name="flipping"),
    "lm/attention": lambda: language_model(False),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_layer_that_looks_ahead_is_named(name):
    """The error names the model if the leak is an operation."""
    inputs = IDS if name == "lm/attention" else None
    with pytest.raises(AssertionError, match=rf"is (\S*/)?{name.split('/')[-1]} \("):
        check_causal(LEAKS[name](), inputs)


def test_a_call_of_ones_own_stays():
    layer = keras.layers.Dense(3)
    own = layer.call
    layer.call = twice = lambda x, training=None: 2 * own(x)
    model, x = functional(layer), np.ones((1, 3, DIM), "float32")
    before = model(x)
    check_causal(model)
    assert layer.call is twice
    np.testing.assert_array_equal(model(x), before)


def test_given_inputs_are_used_and_only_those_with_tokens_changed():
    seen = []

    class Model(keras.Model):
        def call(self, inputs):
            seen.append({name: np.asarray(x) for name, x in inputs.items()})
            return inputs["ids"] * inputs["scale"]

    ids = np.arange(20).reshape(2, 10)
    check_causal(Model(), {"ids": ids, "scale": np.full((2, 1), 3)})
    *_, last = seen
    np.testing.assert_array_equal(last["ids"][:, :9], ids[:, :9])
    assert (last["ids"][:, 9] != ids[:, 9]).any() and last["ids"].max() < 20
    assert all((x["scale"] == 3).all() for x in seen)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda: keras.layers.Dense(2), None, "inputs must be given"),
        (lambda: keras.layers.Dense(2), np.ones(3), r"\(B, T, ...\). Received: shape"),
        (lambda: keras.layers.Dense(2), np.ones((2, 1, 3)), "needs outputs"),
        (
            lambda: functional(keras.layers.ReLU()),
            np.zeros((2, 4, DIM)),
            "needs outputs",
        ),
    ],
)
def test_what_cannot_be_checked_is_an_error(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        check_causal(model(), inputs)
