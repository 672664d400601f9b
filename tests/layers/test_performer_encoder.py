"""PerformerEncoder: with exact weights its formula, masks, packed rows, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerDecoder, PerformerEncoder
from tests.layers import transformer_reference
from tests.layers.inputs import normal

LENGTH, DIM = 7, 6
X = normal((2, LENGTH, DIM))
MASK = np.arange(LENGTH) < [[7], [4]]
EXACT = dict(attention="exact")


def encoder(**options):
    given = dict(intermediate_dim=11, num_heads=2, seed=1)
    return PerformerEncoder(**{**given, **options})


def with_random_weights(layer, *shapes):
    layer.build(*shapes)
    for index, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(weight.shape, seed=index))
    return layer


@pytest.mark.parametrize(
    "normalize_first, exact", [(False, EXACT), (True, dict(exact_window=LENGTH))]
)
def test_with_exact_weights_it_is_a_transformer_encoder(normalize_first, exact):
    layer = encoder(normalize_first=normalize_first, layer_norm_epsilon=0.1, **exact)
    with_random_weights(layer, X.shape)
    x = X.astype("float64")
    everything = np.ones((2, LENGTH, LENGTH), bool)
    expected = transformer_reference.encoder(layer, x, everything)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-4, atol=1e-5)
    expected = transformer_reference.encoder(layer, x, everything & MASK[:, None])
    for call in (
        dict(padding_mask=MASK),
        dict(padding_mask=MASK.astype("int32")),
        dict(attention_mask=MASK[:, np.newaxis]),
        dict(padding_mask=MASK, attention_mask=MASK[:, np.newaxis]),
    ):
        # at padding, too: it sees the others and is not seen
        np.testing.assert_allclose(layer(X, **call), expected, rtol=1e-4, atol=1e-5)


def test_an_implicit_mask_is_that_of_padding():
    layer = with_random_weights(encoder(), X.shape)
    masked = keras.layers.Masking()(X * MASK[..., np.newaxis])
    expected = layer(tf.constant(masked.numpy()), padding_mask=MASK)
    output = layer(masked)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    # and it goes on to later layers
    np.testing.assert_array_equal(keras.layers.Masking().compute_mask(masked), MASK)
    np.testing.assert_array_equal(output._keras_mask, MASK)
    # one that is given counts alone
    everything = np.ones_like(MASK)
    given = layer(masked, padding_mask=everything)
    free = layer(tf.constant(masked.numpy()))
    np.testing.assert_allclose(given, free, rtol=1e-5, atol=1e-6)


def test_scores_are_those_of_the_attention():
    layer = with_random_weights(encoder(normalize_first=True), X.shape)
    output, scores = layer(X, padding_mask=MASK, return_attention_scores=True)
    np.testing.assert_array_equal(output, layer(X, padding_mask=MASK))
    _, expected = layer.attention(
        layer.attention_norm(X), key_mask=MASK, return_attention_scores=True
    )
    np.testing.assert_array_equal(scores, expected)
    assert scores.shape == (2, 2, LENGTH, LENGTH)


def test_packed_rows_with_positions():
    """Two sequences in a row, each with positions of its own, as they are apart."""
    layer = with_random_weights(encoder(num_heads=1, rotary=True), X.shape)
    segment_ids = np.array([[0, 0, 0, 1, 1, 1, 1]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 3]])
    packed = layer(X[:1], segment_ids=segment_ids, positions=positions)
    for part in (slice(0, 3), slice(3, 7)):
        apart = layer(X[:1, part])
        np.testing.assert_allclose(packed[:, part], apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training, equal", [(False, True), (True, False)])
def test_dropout_falls_in_training(training, equal):
    layer = with_random_weights(encoder(dropout=0.5), X.shape)
    again = layer(X, training=training)
    assert np.array_equal(layer(X, training=training), again) == equal


@pytest.mark.parametrize("kind", [PerformerEncoder, PerformerDecoder])
def test_the_default_number_of_features_goes_with_every_map(kind):
    layer = kind(intermediate_dim=11, num_heads=2, feature_map="taylor")
    layer.build(X.shape)
    attention = getattr(layer, "attention", None) or layer.self_attention
    assert attention.projection_matrix is None
    config = layer.get_config()
    assert config["num_random_features"] == "auto"
    assert attention.get_config()["num_random_features"] == "auto"
    assert kind.from_config(config).get_config() == config
    with pytest.raises(ValueError, match="has no random features"):
        kind(11, 2, feature_map="taylor", num_random_features=256).build(X.shape)
    old = kind.from_config({**kind(11, 2).get_config(), "num_random_features": 256})
    old.build(X.shape)
    assert old.get_config()["num_random_features"] == 256


def test_a_layer_leaves_the_count_of_names_as_it_is():
    keras.utils.clear_session()
    PerformerEncoder(intermediate_dim=11, num_heads=2)
    assert PerformerAttention(2, 4).name == "performer_attention"


def test_bad_inputs_raise():
    with pytest.raises(ValueError, match="num_heads must divide hidden_dim"):
        encoder(num_heads=4).build(X.shape)
    with pytest.raises(ValueError, match=r"PerformerEncoder needs inputs .*5, 6"):
        encoder()(tf.ones((3, 4, 5, 6)))
    for shape in ((2, LENGTH, LENGTH), (2, LENGTH)):
        with pytest.raises(ValueError, match="attention_mask must not differ by query"):
            encoder()(X, attention_mask=np.ones(shape))
