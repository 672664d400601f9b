"""Models converted to other attention keep their weights and their outputs."""

import functools

import keras
import numpy as np
import pytest

from keras_performer import convert_to_performer
from keras_performer.conversion import convert_attention
from keras_performer.layers import (
    LinearTransformerAttention,
    LocalAttention,
    PerformerAttention,
)
from keras_performer.layers.keras_privates import dense_layer
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
X = np.random.default_rng(1).normal(size=(2, LENGTH, DIM)).astype("float32")


def model_with_attention(**call):
    keras.utils.set_random_seed(0)
    start = keras.Input((LENGTH, DIM))
    layer = keras.layers.MultiHeadAttention(3, 4, bias_initializer="normal", name="own")
    return keras.Model(start, layer(start, start, **call))


# Options with which each kind of attention sees all keys.
ALL = {
    LocalAttention: dict(sliding_window=LENGTH),
    BigBirdAttention: dict(block_size=LENGTH),
    LongformerAttention: dict(sliding_window=2, num_global_tokens=LENGTH),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_what_sees_everything_says_the_same(kind, causal):
    model = model_with_attention(use_causal_mask=causal)
    other, report = convert_attention(model, kind, **ALL[kind])
    assert [row.became for row in report.layers] == [kind.__name__]
    other.save("model.keras")
    for each in (other, keras.models.load_model("model.keras")):
        np.testing.assert_allclose(each(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "kind, options",
    [
        (LocalAttention, dict(sliding_window=3, rotary=True)),
        (LongformerAttention, dict(sliding_window=3, rotary=True)),
        (LinearTransformerAttention, {}),
        (PerformerAttention, dict(exact_window=3, initial_log_gain=(-4.0, 2.0, 0.0))),
        (None, dict(exact_window=4, num_random_features=16, feature_map="favor+")),
    ],
)
def test_a_converted_layer_is_the_one_that_users_would_make(kind, options):
    """The new layer has the old weights and causality, and the options of the call."""
    model = model_with_attention(use_causal_mask=True)
    convert = functools.partial(convert_attention, attention=kind)
    convert = convert_to_performer if kind is None else convert
    other, _ = convert(model, seed=5, **options)
    layer = (kind or PerformerAttention)(3, 4, causal=True, seed=5, **options)
    layer.build(X.shape)
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        given = dense_layer(model.get_layer("own"), name).get_weights()
        getattr(layer, name).set_weights(given)
        copied = getattr(layer, f"_{name.replace('_dense', '')}_global_dense", None)
        if copied is not None:
            copied.set_weights(given)
    np.testing.assert_allclose(other(X), layer(X), rtol=1e-4, atol=1e-5)
    assert np.abs(other(X) - model(X)).max() > 1e-3


UNFIT = "(?s)the weights do not fit.*"


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (ReformerAttention, {}, UNFIT + "ReformerAttention has no key_dense"),
        (SynthesizerAttention, dict(max_length=LENGTH), UNFIT + "has no key_dense"),
        (LinformerAttention, dict(max_length=LENGTH), UNFIT + "Attention has own/"),
        (
            SinkhornAttention,
            dict(block_size=4, max_length=LENGTH),
            UNFIT + "SinkhornAttention has own/",
        ),
        # the error names the heads of the layer
        (LocalAttention, dict(sliding_window=3, rotary=(2, 2, 2)), "key_dim=4"),
        (LocalAttention, dict(sliding_window=3, num_key_value_heads=2), "num_heads=3"),
        (LocalAttention, dict(sliding_window=0), "sliding_window must.*window=0"),
        (LocalAttention(1, 1, sliding_window=3), {}, "a subclass of AttentionLayer"),
        ("local", {}, "a subclass of AttentionLayer"),
        (keras.layers.Dense, {}, "a subclass of AttentionLayer"),
    ],
)
def test_what_does_not_fit_is_named(kind, options, words):
    with pytest.raises(ValueError, match=words):
        convert_attention(model_with_attention(), kind, **options)


def test_an_option_that_is_required_is_asked_for():
    with pytest.raises(TypeError, match="required.*'sliding_window'"):
        convert_attention(model_with_attention(), LocalAttention)
