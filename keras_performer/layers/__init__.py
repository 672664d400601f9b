"""Keras layers: attention, Transformer blocks, and base classes."""

from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.block import PerformerBlock
from keras_performer.layers.embeddings import EmbeddingLayer
from keras_performer.layers.exact import ExactAttention
from keras_performer.layers.local import LocalAttention
from keras_performer.layers.mixing import MixingLayer
from keras_performer.layers.performer import (
    LinearTransformerAttention,
    PerformerAttention,
)
from keras_performer.layers.transformer import PerformerDecoder, PerformerEncoder

__all__ = [
    "AttentionLayer",
    "EmbeddingLayer",
    "ExactAttention",
    "LinearTransformerAttention",
    "LocalAttention",
    "MixingLayer",
    "PerformerAttention",
    "PerformerBlock",
    "PerformerDecoder",
    "PerformerEncoder",
]
