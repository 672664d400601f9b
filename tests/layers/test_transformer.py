"""Encoder and decoder: the order of their parts, states, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerDecoder, PerformerEncoder
from tests.layers.inputs import in_pieces, normal
from tests.layers.twins import randomize

LENGTH, DIM = 7, 6
X = normal((2, LENGTH, DIM))
MASK = np.arange(LENGTH) < [[7], [4]]
ENCODED = normal((2, 5, 4), seed=1)
ENCODED_MASK = np.arange(5) < [[3], [5]]


def made(kind, *shapes, **options):
    """Returns a layer; with shapes, it is built and has random weights."""
    given = dict(intermediate_dim=11, num_heads=2, seed=1)
    layer = kind(**{**given, **options})
    if shapes:
        layer.build(*shapes)
        randomize(layer, std=1.0)
    return layer


def encoder(**options):
    return made(PerformerEncoder, X.shape, **options)


def decoder(*shapes, **options):
    return made(PerformerDecoder, X.shape, *shapes, **options)


# -- Their parts, in order.


def add(layer, norm, x, part):
    """Adds the output of a part of a layer to tokens x, and normalizes."""
    if layer.normalize_first:
        return x + part(norm(x))
    return norm(x + part(x))


def expected_of(layer, own, cross=None):
    """Computes the output for X and, with `cross`, for ENCODED.

    Args:
        layer: `PerformerEncoder` or `PerformerDecoder`.
        own: dict, arguments of the call of self-attention.
        cross: dict, arguments of the call of cross-attention.
    """
    name = "attention" if isinstance(layer, PerformerEncoder) else "self_attention"
    attention, norm = getattr(layer, name), getattr(layer, f"{name}_norm")
    x = add(layer, norm, X, lambda x: attention(x, **own))
    if cross is not None:
        attention, norm = layer.cross_attention, layer.cross_attention_norm
        x = add(layer, norm, x, lambda x: attention(x, ENCODED, **cross))
    return add(layer, layer.feedforward_norm, x, lambda x: feed_forward(layer, x))


def feed_forward(layer, x):
    hidden = x @ layer.expand.kernel + layer.expand.bias
    return layer.contract(tf.maximum(hidden, 0))


def assert_close(output, expected):
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_an_encoder_is_that_of_a_transformer(normalize_first):
    layer = encoder(normalize_first=normalize_first, layer_norm_epsilon=0.1)
    assert layer.attention_norm.epsilon == layer.feedforward_norm.epsilon == 0.1
    assert_close(layer(X), expected_of(layer, {}))
    # padding sees other tokens and is not visible
    expected = expected_of(layer, dict(key_mask=MASK))
    for call in (
        dict(padding_mask=MASK),
        dict(padding_mask=MASK.astype("int32")),
        dict(attention_mask=MASK[:, np.newaxis]),
        dict(padding_mask=MASK, attention_mask=MASK[:, np.newaxis]),
    ):
        assert_close(layer(X, **call), expected)


@pytest.mark.parametrize("normalize_first, causal", [(False, True), (True, False)])
def test_a_decoder_is_that_of_a_transformer(normalize_first, causal):
    layer = decoder(normalize_first=normalize_first)
    own = dict(use_causal_mask=causal)
    assert_close(layer(X, use_causal_mask=causal), expected_of(layer, own))
    expected = expected_of(layer, dict(key_mask=MASK, **own))
    for call in (
        dict(decoder_padding_mask=MASK),
        dict(decoder_attention_mask=MASK[:, np.newaxis]),
    ):
        assert_close(layer(X, use_causal_mask=causal, **call), expected)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_decoder_sees_the_sequence_of_an_encoder(normalize_first):
    layer = decoder(ENCODED.shape, normalize_first=normalize_first)
    own = dict(use_causal_mask=True)
    assert_close(layer(X, ENCODED), expected_of(layer, own, {}))
    expected = expected_of(layer, own, dict(key_mask=ENCODED_MASK))
    for call in (
        dict(encoder_padding_mask=ENCODED_MASK),
        dict(encoder_attention_mask=ENCODED_MASK[:, np.newaxis]),
    ):
        assert_close(layer(X, ENCODED, **call), expected)


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
