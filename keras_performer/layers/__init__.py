"""Keras layers."""

from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.big_bird_attention import BigBirdAttention
from keras_performer.layers.embedding_layer import EmbeddingLayer
from keras_performer.layers.exact_attention import ExactAttention
from keras_performer.layers.linear_transformer_attention import (
    LinearTransformerAttention,
)
from keras_performer.layers.linformer_attention import LinformerAttention
from keras_performer.layers.local_attention import LocalAttention
from keras_performer.layers.longformer_attention import LongformerAttention
from keras_performer.layers.performer_attention import PerformerAttention
from keras_performer.layers.performer_block import PerformerBlock
from keras_performer.layers.performer_decoder import PerformerDecoder
from keras_performer.layers.performer_encoder import PerformerEncoder
from keras_performer.layers.synthesizer_attention import SynthesizerAttention

__all__ = [
    "AttentionLayer",
    "BigBirdAttention",
    "EmbeddingLayer",
    "ExactAttention",
    "LinearTransformerAttention",
    "LinformerAttention",
    "LocalAttention",
    "LongformerAttention",
    "PerformerAttention",
    "PerformerBlock",
    "PerformerDecoder",
    "PerformerEncoder",
    "SynthesizerAttention",
]
