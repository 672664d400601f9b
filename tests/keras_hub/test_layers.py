"""PerformerEncoder and PerformerDecoder give the outputs of KerasHub's layers."""

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


ENCODERS = keras_hub.layers.TransformerEncoder, PerformerEncoder
DECODERS = keras_hub.layers.TransformerDecoder, PerformerDecoder
SEEN = dict(padding_mask=PADDING, attention_mask=PADDING[:, np.newaxis])
CASES = [
    (ENCODERS, (X,), [{}, dict(padding_mask=PADDING), SEEN]),
    (
        DECODERS,
        (X,),
        [
            {},
            dict(use_causal_mask=False),
            dict(decoder_padding_mask=PADDING),
            dict(decoder_padding_mask=PADDING, use_causal_mask=False),
        ],
    ),
    (
        DECODERS,
        (X, ENCODED),
        [
            {},
            dict(encoder_padding_mask=ENCODED_PADDING, decoder_padding_mask=PADDING),
            dict(encoder_attention_mask=ENCODED_PADDING[:, np.newaxis]),
        ],
    ),
]


def twins(of_hub, kind, options, *shapes):
    """Returns KerasHub's layer and ours, with the same weights."""
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
@pytest.mark.parametrize("kinds, inputs, calls", CASES)
def test_outputs_are_those_of_keras_hub(kinds, inputs, calls, options):
    hub, layer = twins(*kinds, options, *(x.shape for x in inputs))
    for call in calls:
        expected = hub(*inputs, **call)
        np.testing.assert_allclose(layer(*inputs, **call), expected, atol=1e-5)
    if kinds is ENCODERS:
        ours, theirs = (x(X, return_attention_scores=True)[1] for x in (layer, hub))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
