"""Small KerasHub models with large weights, and data for them."""

import keras
import keras_hub
import numpy as np

from tests.layers.inputs import normal

LENGTH, VOCABULARY = 12, 31
PADDING = np.arange(LENGTH) < [[LENGTH], [7]]


def with_random_weights(layer, std=1.0):
    for index, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(weight.shape, seed=index, std=std))
    return layer


def bert():
    return keras_hub.models.BertBackbone(VOCABULARY, 2, 2, 8, 16, dropout=0.0)


def albert():
    """Returns a model that calls one layer four times."""
    return keras_hub.models.AlbertBackbone(VOCABULARY, 4, 2, 6, 8, 16)


def gpt2():
    return keras_hub.models.GPT2Backbone(VOCABULARY, 2, 2, 8, 16, dropout=0.0)


def bert_classifier():
    return keras_hub.models.BertTextClassifier(bert(), num_classes=3, dropout=0.0)


def gpt2_generator():
    return keras_hub.models.GPT2CausalLM(gpt2())


def layers_of_hub():
    """Returns a functional model of an encoder and a decoder with cross-attention."""
    source, target = keras.Input((None, 8)), keras.Input((None, 8))
    encoded = keras_hub.layers.TransformerEncoder(16, 2)(source)
    return keras.Model(
        [source, target], keras_hub.layers.TransformerDecoder(16, 2)(target, encoded)
    )


def data_for(model):
    """Returns inputs of a model, as a dict of arrays."""
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=PADDING.shape)
    known = {
        "token_ids": tokens,
        "segment_ids": (tokens > 20).astype("int32"),
        "padding_mask": PADDING.astype("int32"),
    }
    return {name: known[name] for name in model.input}
