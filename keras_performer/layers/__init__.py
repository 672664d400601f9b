"""Keras layers."""

from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.big_bird_attention import BigBirdAttention
from keras_performer.layers.embedding_layer import EmbeddingLayer
from keras_performer.layers.exact_attention import ExactAttention
from keras_performer.layers.fourier_mixing import FourierMixing
from keras_performer.layers.linear_transformer_attention import (
    LinearTransformerAttention,
)
from keras_performer.layers.linformer_attention import LinformerAttention
from keras_performer.layers.local_attention import LocalAttention
from keras_performer.layers.longformer_attention import LongformerAttention
from keras_performer.layers.mixing_layer import MixingLayer
from keras_performer.layers.performer_attention import PerformerAttention
from keras_performer.layers.performer_block import PerformerBlock
from keras_performer.layers.performer_decoder import PerformerDecoder
from keras_performer.layers.performer_encoder import PerformerEncoder
from keras_performer.layers.reformer_attention import ReformerAttention
from keras_performer.layers.reversible_block import ReversibleBlock
from keras_performer.layers.sinkhorn_attention import SinkhornAttention
from keras_performer.layers.spatial_gating_unit import SpatialGatingUnit
from keras_performer.layers.synthesizer_attention import SynthesizerAttention
from keras_performer.layers.token_mixing import TokenMixing

__all__ = [
    "AttentionLayer",
    "BigBirdAttention",
    "EmbeddingLayer",
    "ExactAttention",
    "FourierMixing",
    "LinearTransformerAttention",
    "LinformerAttention",
    "LocalAttention",
    "LongformerAttention",
    "MixingLayer",
    "PerformerAttention",
    "PerformerBlock",
    "PerformerDecoder",
    "PerformerEncoder",
    "ReformerAttention",
    "ReversibleBlock",
    "SinkhornAttention",
    "SpatialGatingUnit",
    "SynthesizerAttention",
    "TokenMixing",
]
