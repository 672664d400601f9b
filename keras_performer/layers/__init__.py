"""Keras layers."""

from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.embedding_layer import EmbeddingLayer
from keras_performer.layers.exact_attention import ExactAttention
from keras_performer.layers.local_attention import LocalAttention
from keras_performer.layers.performer_attention import PerformerAttention
from keras_performer.layers.performer_block import PerformerBlock
from keras_performer.layers.performer_decoder import PerformerDecoder
from keras_performer.layers.performer_encoder import PerformerEncoder
from keras_performer.layers.reformer_attention import ReformerAttention
from keras_performer.layers.reversible_block import ReversibleBlock

__all__ = [
    "AttentionLayer",
    "EmbeddingLayer",
    "ExactAttention",
    "LocalAttention",
    "PerformerAttention",
    "PerformerBlock",
    "PerformerDecoder",
    "PerformerEncoder",
    "ReformerAttention",
    "ReversibleBlock",
]
