"""PerformerEncoder and PerformerDecoder compute what KerasHub's layers compute."""

import keras_hub
import numpy as np
import pytest

from keras_performer import PerformerDecoder, PerformerEncoder
from tests.keras_hub.models import LENGTH, PADDING, with_random_weights
from tests.layers.inputs import normal

X, ENCODED = normal((2, LENGTH, 8)), normal((2, 5, 8), seed=1)
ENCODED_PADDING = np.arange(5) < [[3], [5]]
EXACT = dict(attention="exact")
OURS_OF_HUB = {
    "attention": "_self_attention_layer",
    "attention_norm": "_self_attention_layer_norm",
    "self_attention": "_self_attention_layer",
    "self_attention_norm": "_self_attention_layer_norm",
    "cross_attention": "_cross_attention_layer",
    "cross_attention_norm": "_cross_attention_layer_norm",
    "expand": "_feedforward_intermediate_dense",
    "contract": "_feedforward_output_dense",
    "feedforward_norm": "_feedforward_layer_norm",
}
OPTIONS = [
    {},
    dict(normalize_first=True),
    dict(activation="gelu", layer_norm_epsilon=0.1, dropout=0.3),
]


def twins(of_hub, kind, options, *shapes):
    """KerasHub's layer and ours, with the same weights."""
    hub, layer = of_hub(16, 2, **options), kind(16, 2, **options, **EXACT)
    for made in (hub, layer):
        made.build(*shapes)
    with_random_weights(hub, std=0.5)
    for ours, of_hub in OURS_OF_HUB.items():
        if getattr(layer, ours, None) is not None:
            weights = getattr(hub, of_hub).get_weights()
            getattr(layer, ours).set_weights(weights)
    return hub, layer


@pytest.mark.parametrize("options", OPTIONS)
def test_encoder(options):
    kinds = keras_hub.layers.TransformerEncoder, PerformerEncoder
    hub, layer = twins(*kinds, options, X.shape)
    for call in (
        {},
        dict(padding_mask=PADDING),
        dict(padding_mask=PADDING, attention_mask=PADDING[:, np.newaxis]),
    ):
        np.testing.assert_allclose(layer(X, **call), hub(X, **call), atol=1e-5)
    ours, theirs = (x(X, return_attention_scores=True)[1] for x in (layer, hub))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_decoder(options):
    kinds = keras_hub.layers.TransformerDecoder, PerformerDecoder
    hub, layer = twins(*kinds, options, X.shape)
    for call in (
        {},
        dict(use_causal_mask=False),
        dict(decoder_padding_mask=PADDING),
        dict(decoder_padding_mask=PADDING, use_causal_mask=False),
    ):
        np.testing.assert_allclose(layer(X, **call), hub(X, **call), atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_decoder_that_sees_an_encoder(options):
    kinds = keras_hub.layers.TransformerDecoder, PerformerDecoder
    hub, layer = twins(*kinds, options, X.shape, ENCODED.shape)
    for call in (
        {},
        dict(encoder_padding_mask=ENCODED_PADDING, decoder_padding_mask=PADDING),
        dict(encoder_attention_mask=ENCODED_PADDING[:, np.newaxis]),
    ):
        expected = hub(X, ENCODED, **call)
        np.testing.assert_allclose(layer(X, ENCODED, **call), expected, atol=1e-5)
