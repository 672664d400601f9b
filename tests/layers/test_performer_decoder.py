"""PerformerDecoder: with exact weights its formula, cross-attention, states, errors."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerDecoder
from tests.layers import transformer_reference
from tests.layers.inputs import normal
from tests.layers.test_performer_encoder import EXACT, MASK, X, with_random_weights

LENGTH = X.shape[1]
ENCODED = normal((2, 5, 4), seed=1)
ENCODED_MASK = np.arange(5) < [[3], [5]]
EARLIER = np.tri(LENGTH, dtype=bool)[np.newaxis]


def decoder(*shapes, **options):
    given = dict(intermediate_dim=11, num_heads=2, seed=1)
    return with_random_weights(PerformerDecoder(**{**given, **options}), *shapes)


@pytest.mark.parametrize("normalize_first, causal", [(False, True), (True, False)])
def test_with_exact_weights_it_is_a_transformer_decoder(normalize_first, causal):
    layer = decoder(X.shape, normalize_first=normalize_first, **EXACT)
    x, visible = X.astype("float64"), EARLIER if causal else np.ones_like(EARLIER)
    expected = transformer_reference.decoder(layer, x, visible)
    output = layer(X, use_causal_mask=causal)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    expected = transformer_reference.decoder(layer, x, visible & MASK[:, np.newaxis])
    for mask in (
        dict(decoder_padding_mask=MASK),
        dict(decoder_attention_mask=MASK[:, np.newaxis]),
    ):
        output = layer(X, use_causal_mask=causal, **mask)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "normalize_first, name",
    [(False, "encoder_padding_mask"), (True, "encoder_attention_mask")],
)
def test_it_sees_the_sequence_of_an_encoder(name, normalize_first):
    layer = decoder(X.shape, ENCODED.shape, normalize_first=normalize_first, **EXACT)
    arrays = X.astype("float64"), EARLIER, ENCODED.astype("float64")
    everything = np.ones((2, 1, 5), bool)
    expected = transformer_reference.decoder(layer, *arrays, everything)
    np.testing.assert_allclose(layer(X, ENCODED), expected, rtol=1e-4, atol=1e-5)
    visible = ENCODED_MASK[:, np.newaxis]
    expected = transformer_reference.decoder(layer, *arrays, visible)
    mask = ENCODED_MASK if "padding" in name else visible
    output = layer(X, ENCODED, **{name: mask})
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def in_pieces(layer, state, **masks):
    parts = []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        here = {name: mask[:, start:end] for name, mask in masks.items()}
        part, state = layer(X[:, start:end], state=state, return_state=True, **here)
        parts.append(part)
    assert state["self_attention"]["position"].numpy().tolist() == [7, 7]
    return tf.concat(parts, 1)


@pytest.mark.parametrize("exact_window, packed", [(None, False), (3, True)])
def test_a_sequence_in_pieces_is_the_whole(exact_window, packed):
    layer = decoder(X.shape, exact_window=exact_window)
    masks = {"decoder_padding_mask": MASK}
    if packed:
        masks["segment_ids"] = np.array([[0, 0, 1, 1, 1, 2, 2]] * 2)
    pieces = in_pieces(layer, layer.get_initial_state(2, packed=packed), **masks)
    whole = layer(X, **masks)
    np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-4)


def test_the_state_knows_the_sequence_of_an_encoder():
    layer = decoder(X.shape, ENCODED.shape, exact_window=3)
    whole = layer(X, ENCODED, encoder_padding_mask=ENCODED_MASK)
    state = layer.get_initial_state(2, ENCODED, ENCODED_MASK)
    np.testing.assert_allclose(in_pieces(layer, state), whole, rtol=1e-4, atol=1e-4)
    unmasked = layer.get_initial_state(2, ENCODED)
    assert np.abs(in_pieces(layer, unmasked) - whole).max() > 1e-2
    # from a first call with the sequence, as well
    first, state = layer(
        X[:, :4],
        ENCODED,
        encoder_attention_mask=ENCODED_MASK[:, np.newaxis],
        return_state=True,
    )
    then = layer(X[:, 4:], state=state)
    np.testing.assert_allclose(tf.concat([first, then], 1), whole, rtol=1e-4, atol=1e-4)


def test_a_state_with_mixed_precision_stays_in_float32():
    layer = decoder(X.shape, ENCODED.shape, dtype="mixed_bfloat16")
    whole = tf.cast(layer(X, ENCODED), "float32")
    state = layer.get_initial_state(2, ENCODED)
    assert {x.dtype for x in tf.nest.flatten(state)} == {tf.float32, tf.int32}
    pieces = tf.cast(in_pieces(layer, state), "float32")
    np.testing.assert_allclose(pieces, whole, atol=0.1)


def test_only_the_self_attention_has_a_window_and_rotary_positions():
    layer = decoder(
        X.shape,
        ENCODED.shape,
        num_heads=1,
        rotary=True,
        exact_window=3,
        initial_log_gain=-4.0,
        qk_norm=True,
    )
    own, cross = layer.self_attention, layer.cross_attention
    assert (own.initial_log_gain, cross.initial_log_gain) == (-4.0, 0.0)
    again = type(layer).from_config(layer.get_config())
    again.build(X.shape, ENCODED.shape)
    np.testing.assert_allclose(again.self_attention.log_gain, [-4.0], rtol=1e-6)
    assert cross.log_gain is None
    assert (own.exact_window, own.rotary, own.qk_norm) == (3, True, True)
    assert (cross.exact_window, cross.rotary, cross.qk_norm) == (None, None, True)
    assert own.seed != cross.seed


def test_an_encoder_is_there_in_each_call_or_in_none():
    with pytest.raises(ValueError, match="built without encoder_sequence"):
        decoder(X.shape)(X, ENCODED)
    layer = decoder(X.shape, ENCODED.shape)
    with pytest.raises(ValueError, match="needs one in each call without a state"):
        layer(X)
    with pytest.raises(ValueError, match="needs one in each call without a state"):
        layer.get_initial_state(2)
    state = layer.get_initial_state(2, ENCODED)
    with pytest.raises(ValueError, match="leave encoder_sequence out"):
        layer(X, ENCODED, state=state)


def test_states_that_are_none_raise():
    layer = PerformerDecoder(4, 2)
    with pytest.raises(ValueError, match="must be built before it has a state"):
        layer.get_initial_state(2)
    layer = decoder(X.shape)
    with pytest.raises(ValueError, match="with the entries self_attention, from"):
        layer(X, state=layer.self_attention.get_initial_state(2))
    with pytest.raises(ValueError, match="A state belongs to causal attention"):
        layer(X, use_causal_mask=False, return_state=True)
    layer = decoder(X.shape, ENCODED.shape)
    for shape in ((2, LENGTH, LENGTH), (2, LENGTH)):
        mask = np.ones(shape)
        with pytest.raises(ValueError, match="attention_mask must not differ by query"):
            layer(X, ENCODED, decoder_attention_mask=mask)
        with pytest.raises(ValueError, match="attention_mask must not differ by query"):
            layer(X, ENCODED, encoder_attention_mask=mask)


def test_a_state_in_another_order_is_the_same():
    layer = PerformerDecoder(12, 3)
    layer(X, ENCODED)
    state = layer.get_initial_state(2, ENCODED)
    turned = {name: state[name] for name in reversed(state)}
    assert list(turned) != list(state)
    found, right = (layer(X[:, :4], state=s) for s in (turned, state))
    np.testing.assert_array_equal(found, right)
