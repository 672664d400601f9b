"""Other attention with the weights of a model: it says what the layer says."""

import keras
import numpy as np
import pytest

from keras_performer.conversion import convert_attention
from keras_performer.layers import (
    LinearTransformerAttention,
    LocalAttention,
    PerformerAttention,
)
from keras_performer.zoo import (
    BigBirdAttention,
    LinformerAttention,
    LongformerAttention,
    ReformerAttention,
    SinkhornAttention,
    SynthesizerAttention,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM = 24, 6


def model_with_attention(**call):
    keras.utils.set_random_seed(0)
    start = keras.Input((LENGTH, DIM))
    layer = keras.layers.MultiHeadAttention(3, 4, bias_initializer="normal", name="own")
    return keras.Model(start, layer(start, start, **call))


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(2, LENGTH, DIM)).astype("float32")


# Options with which the first, too, sees everything.
ALL = {
    LocalAttention: dict(sliding_window=LENGTH),
    BigBirdAttention: dict(block_size=LENGTH),
    LongformerAttention: dict(sliding_window=2, num_global_tokens=LENGTH),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_what_sees_everything_says_the_same(kind, causal, x, tmp_path):
    model = model_with_attention(use_causal_mask=causal)
    other, report = convert_attention(model, kind, **ALL[kind])
    assert [row.became for row in report.layers] == [kind.__name__]
    np.testing.assert_allclose(other(x), model(x), rtol=1e-4, atol=1e-5)
    other.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_window_is_that_of_the_mask(x):
    model = model_with_attention()
    other, _ = convert_attention(model, LocalAttention, sliding_window=3)
    places = np.arange(LENGTH)
    near = np.abs(places[:, np.newaxis] - places) < 3
    masked = model.get_layer("own")(x, x, attention_mask=near[np.newaxis])
    np.testing.assert_allclose(other(x), masked, rtol=1e-4, atol=1e-5)


def test_each_layer_sees_other_blocks():
    x = start = keras.Input((LENGTH, DIM))
    for name in ("first", "second"):
        x = keras.layers.MultiHeadAttention(3, 4, name=name)(x, x)
    options = dict(block_size=2, num_random_blocks=2)
    model = keras.Model(start, x)
    tables = []
    for seed in (7, 8):
        other, _ = convert_attention(model, BigBirdAttention, seed=seed, **options)
        tables += [
            other.get_layer(name).seen_blocks(LENGTH, False).table.numpy()
            for name in ("first", "second")
        ]
    first, second, again, _ = tables
    assert (first != second).any()
    np.testing.assert_array_equal(again, second)


def test_another_kernel_has_the_weights(x):
    model = model_with_attention()
    other, _ = convert_attention(model, LinearTransformerAttention)
    layer = other.get_layer("own")
    for own, given in zip(layer.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, given)
    assert np.abs(other(x) - model(x)).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (ReformerAttention, {}, "ReformerAttention has no key_dense"),
        (SynthesizerAttention, dict(max_length=LENGTH), "has no key_dense"),
        (LinformerAttention, dict(max_length=LENGTH), "LinformerAttention has own/"),
        (
            SinkhornAttention,
            dict(block_size=4, max_length=LENGTH),
            "SinkhornAttention has own/",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(kind, options, words):
    with pytest.raises(ValueError, match=words) as error:
        convert_attention(model_with_attention(), kind, **options)
    assert "the weights do not fit" in str(error.value)


def test_what_is_no_class_of_attention_is_refused():
    for wrong in (LocalAttention(1, 1, sliding_window=3), "local", keras.layers.Dense):
        with pytest.raises(ValueError, match="a subclass of AttentionLayer"):
            convert_attention(model_with_attention(), wrong)
    with pytest.raises(ValueError, match="sliding_window must be"):
        convert_attention(model_with_attention(), LocalAttention, sliding_window=0)


@pytest.mark.parametrize(
    "kind, options",
    [
        (LocalAttention, dict(sliding_window=3, rotary=True)),
        (LongformerAttention, dict(sliding_window=3, rotary=True)),
        (
            PerformerAttention,
            dict(exact_window=3, initial_log_gain=(-4.0, 2.0, 0.0), seed=0),
        ),
    ],
)
def test_options_are_those_of_the_heads_of_the_layer(kind, options, x):
    model = model_with_attention()
    other, _ = convert_attention(model, kind, **options)
    layer = kind(3, 4, **options)
    layer.build(x.shape)
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        given = getattr(model.get_layer("own"), name, None)
        given = given or getattr(model.get_layer("own"), f"_{name}")
        getattr(layer, name).set_weights(given.get_weights())
        copied = getattr(layer, f"_{name.replace('_dense', '')}_global_dense", None)
        if copied is not None:
            copied.set_weights(given.get_weights())
    np.testing.assert_allclose(other(x), layer(x), rtol=1e-4, atol=1e-5)
    assert np.abs(other(x) - model(x)).max() > 1e-3


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(sliding_window=3, rotary=(2, 2, 2)), "key_dim=4"),
        (dict(sliding_window=3, num_key_value_heads=2), "num_heads=3"),
        (dict(sliding_window=0), "sliding_window=0"),
    ],
)
def test_wrong_options_name_the_heads_of_the_layer(options, words):
    with pytest.raises(ValueError, match=words):
        convert_attention(model_with_attention(), LocalAttention, **options)


def test_an_option_that_is_required_is_asked_for():
    with pytest.raises(TypeError, match="required.*'sliding_window'"):
        convert_attention(model_with_attention(), LocalAttention)
