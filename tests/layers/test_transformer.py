"""Encoder and decoder: formulas with exact weights, states, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerDecoder, PerformerEncoder
from tests.layers.inputs import in_pieces, normal
from tests.layers.twins import normalized, written
from tests.layers.zoo_twins import attended

LENGTH, DIM = 7, 6
X = normal((2, LENGTH, DIM))
MASK = np.arange(LENGTH) < [[7], [4]]
ENCODED = normal((2, 5, 4), seed=1)
ENCODED_MASK = np.arange(5) < [[3], [5]]
EARLIER = np.tri(LENGTH, dtype=bool)[np.newaxis]
EXACT = dict(attention="exact")


def made(kind, *shapes, **options):
    """Returns a layer; with shapes, it is built and has random weights."""
    given = dict(intermediate_dim=11, num_heads=2, seed=1)
    layer = kind(**{**given, **options})
    if shapes:
        layer.build(*shapes)
        for index, weight in enumerate(layer.trainable_weights):
            weight.assign(normal(weight.shape, seed=index))
    return layer


def encoder(**options):
    return made(PerformerEncoder, X.shape, **options)


def decoder(*shapes, **options):
    return made(PerformerDecoder, X.shape, *shapes, **options)


# -- With exact weights, against formulas in NumPy and float64.


def attend(layer, query, value, visible):
    """Computes exact attention with the dense weights of a layer."""
    names = ("query", "key", "value", "attention_output")
    names = [f"{name}/{part}" for name in names for part in ("kernel", "bias")]
    weights = dict(zip(names, layer.get_weights()))
    _, values = attended(weights, query, visible[:, np.newaxis], value=value)
    return written(weights, values)


def add(layer, norm, x, part):
    """Adds the output of a part of a layer to tokens x, and normalizes."""
    if layer.normalize_first:
        return x + part(normalized(x, norm))
    return normalized(x + part(x), norm)


def expected_of(layer, visible, encoded_visible=None):
    """Computes the output of an encoder or decoder for X and, if visible, ENCODED."""

    def to_itself(x):
        return attend(getattr(layer, own), x, x, visible)

    def to_encoder(x):
        encoded = ENCODED.astype("float64")
        return attend(layer.cross_attention, x, encoded, encoded_visible)

    def feed_forward(x):
        hidden = x @ layer.expand.kernel.numpy() + layer.expand.bias.numpy()
        hidden = np.maximum(hidden, 0)
        return hidden @ layer.contract.kernel.numpy() + layer.contract.bias.numpy()

    own = "attention" if isinstance(layer, PerformerEncoder) else "self_attention"
    x = add(layer, getattr(layer, f"{own}_norm"), X.astype("float64"), to_itself)
    if encoded_visible is not None:
        x = add(layer, layer.cross_attention_norm, x, to_encoder)
    return add(layer, layer.feedforward_norm, x, feed_forward)


@pytest.mark.parametrize(
    "normalize_first, exact", [(False, EXACT), (True, dict(exact_window=LENGTH))]
)
def test_an_encoder_is_that_of_a_transformer(normalize_first, exact):
    layer = encoder(normalize_first=normalize_first, layer_norm_epsilon=0.1, **exact)
    everything = np.ones((2, LENGTH, LENGTH), bool)
    for visible, calls in (
        (everything, [{}]),
        # also compares padding, which sees other tokens and is not visible
        (
            everything & MASK[:, None],
            [
                dict(padding_mask=MASK),
                dict(padding_mask=MASK.astype("int32")),
                dict(attention_mask=MASK[:, np.newaxis]),
                dict(padding_mask=MASK, attention_mask=MASK[:, np.newaxis]),
            ],
        ),
    ):
        expected = expected_of(layer, visible)
        for call in calls:
            np.testing.assert_allclose(layer(X, **call), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize_first, causal", [(False, True), (True, False)])
def test_a_decoder_is_that_of_a_transformer(normalize_first, causal):
    layer = decoder(normalize_first=normalize_first, **EXACT)
    visible = EARLIER if causal else np.ones_like(EARLIER)
    hidden = visible & MASK[:, np.newaxis]
    for seen, call in (
        (visible, {}),
        (hidden, dict(decoder_padding_mask=MASK)),
        (hidden, dict(decoder_attention_mask=MASK[:, np.newaxis])),
    ):
        expected = expected_of(layer, seen)
        output = layer(X, use_causal_mask=causal, **call)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_decoder_sees_the_sequence_of_an_encoder(normalize_first):
    layer = decoder(ENCODED.shape, normalize_first=normalize_first, **EXACT)
    visible = ENCODED_MASK[:, np.newaxis]
    for seen, call in (
        (np.ones((2, 1, 5), bool), {}),
        (visible, dict(encoder_padding_mask=ENCODED_MASK)),
        (visible, dict(encoder_attention_mask=visible)),
    ):
        expected = expected_of(layer, EARLIER, seen)
        output = layer(X, ENCODED, **call)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


# -- Encoders.


def test_a_mask_that_is_given_counts_alone():
    layer = encoder()
    masked = keras.layers.Masking()(X * MASK[..., np.newaxis])
    given = layer(masked, padding_mask=np.ones_like(MASK))
    free = layer(tf.constant(masked.numpy()))
    np.testing.assert_allclose(given, free, rtol=1e-5, atol=1e-6)


def test_scores_are_those_of_the_attention():
    layer = encoder(normalize_first=True)
    output, scores = layer(X, padding_mask=MASK, return_attention_scores=True)
    np.testing.assert_array_equal(output, layer(X, padding_mask=MASK))
    _, expected = layer.attention(
        layer.attention_norm(X), key_mask=MASK, return_attention_scores=True
    )
    np.testing.assert_array_equal(scores, expected)


def test_packed_rows_with_positions():
    """Two sequences packed into a row, each with its own positions, as if separate."""
    layer = encoder(num_heads=1, rotary=True)
    segment_ids = np.array([[0, 0, 0, 1, 1, 1, 1]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 3]])
    packed = layer(X[:1], segment_ids=segment_ids, positions=positions)
    for part in (slice(0, 3), slice(3, 7)):
        apart = layer(X[:1, part])
        np.testing.assert_allclose(packed[:, part], apart, rtol=1e-4, atol=1e-5)


def test_dropout_falls_in_training():
    layer = encoder(dropout=0.5)
    for training in (False, True):
        one, other = (layer(X, training=training) for _ in range(2))
        assert np.array_equal(one, other) != training


@pytest.mark.parametrize("kind", [PerformerEncoder, PerformerDecoder])
def test_the_default_number_of_features_goes_with_every_map(kind):
    layer = made(kind, X.shape, feature_map="taylor")
    attention = getattr(layer, "attention", None) or layer.self_attention
    assert attention.projection_matrix is None
    assert layer.get_config()["num_random_features"] is None
    old = kind.from_config({**kind(11, 2).get_config(), "num_random_features": 256})
    old.build(X.shape)
    assert old.get_config()["num_random_features"] == 256


def test_a_layer_leaves_the_count_of_names_as_it_is():
    keras.utils.clear_session()
    made(PerformerEncoder)
    assert PerformerAttention(2, 4).name == "performer_attention"


# -- States of decoders.


def test_the_state_knows_the_sequence_of_an_encoder():
    layer = decoder(ENCODED.shape, exact_window=3)
    whole = layer(X, ENCODED, encoder_padding_mask=ENCODED_MASK)
    state = layer.get_initial_state(2, ENCODED, ENCODED_MASK)
    turned = {name: state[name] for name in reversed(state)}
    assert list(turned) != list(state)
    for each in (state, turned):
        pieces, last = in_pieces(layer, X, 3, 4, state=each)
        assert last["self_attention"]["position"].numpy().tolist() == [7, 7]
        np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-4)
    unmasked = layer.get_initial_state(2, ENCODED)
    pieces, _ = in_pieces(layer, X, 3, 4, state=unmasked)
    assert np.abs(pieces - whole).max() > 1e-2
    # also from a first call with the encoder's sequence
    call = dict(encoder_attention_mask=ENCODED_MASK[:, np.newaxis], return_state=True)
    first, state = layer(X[:, :4], ENCODED, **call)
    then = layer(X[:, 4:], state=state)
    np.testing.assert_allclose(tf.concat([first, then], 1), whole, rtol=1e-4, atol=1e-4)


def test_only_the_self_attention_has_a_window_and_rotary_positions():
    options = dict(rotary=True, exact_window=3, initial_log_gain=-4.0, qk_norm=True)
    layer = decoder(ENCODED.shape, num_heads=1, **options)
    own, cross = layer.self_attention, layer.cross_attention
    again = type(layer).from_config(layer.get_config())
    again.build(X.shape, ENCODED.shape)
    np.testing.assert_allclose(again.self_attention.log_gain, [-4.0], rtol=1e-6)
    assert cross.log_gain is None
    for name, value in options.items():
        assert getattr(own, name) == value
    assert (cross.exact_window, cross.rotary, cross.qk_norm) == (None, None, True)
    assert cross.initial_log_gain == 0.0 and own.seed != cross.seed


# -- Errors.


def test_what_encoders_and_decoders_cannot_do_raises():
    alone, both = decoder(), decoder(ENCODED.shape)
    state = both.get_initial_state(2, ENCODED)
    own = alone.self_attention.get_initial_state(2)
    missing = "needs one in each call without a state"
    for message, call in (
        ("built without encoder_sequence", lambda: alone(X, ENCODED)),
        (missing, lambda: both(X)),
        (missing, lambda: both.get_initial_state(2)),
        ("leave encoder_sequence out", lambda: both(X, ENCODED, state=state)),
        (
            "must be built before it has a state",
            lambda: made(PerformerDecoder).get_initial_state(2),
        ),
        ('with the entries "self_attention", from', lambda: alone(X, state=own)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for name in ("decoder_attention_mask", "encoder_attention_mask"):
        with pytest.raises(ValueError, match="attention_mask must not differ by query"):
            both(X, ENCODED, **{name: np.ones((2, LENGTH, LENGTH))})
