"""Attention layers and mixers from other papers, one system in each file."""

from keras_performer.zoo.big_bird import (
    BigBirdAttention,
    SeenBlocks,
    big_bird_blocks,
    block_sparse_attention,
)
from keras_performer.zoo.fnet import FourierMixing
from keras_performer.zoo.gmlp import SpatialGatingUnit
from keras_performer.zoo.linformer import LinformerAttention
from keras_performer.zoo.longformer import LongformerAttention, global_token_attention
from keras_performer.zoo.mlp_mixer import TokenMixing
from keras_performer.zoo.reformer import (
    ReformerAttention,
    lsh_attention,
    lsh_buckets,
)
from keras_performer.zoo.reversible import ReversibleBlock, reversible_chain
from keras_performer.zoo.sinkhorn import SinkhornAttention
from keras_performer.zoo.synthesizer import SynthesizerAttention

__all__ = [
    "BigBirdAttention",
    "FourierMixing",
    "LinformerAttention",
    "LongformerAttention",
    "ReformerAttention",
    "ReversibleBlock",
    "SeenBlocks",
    "SinkhornAttention",
    "SpatialGatingUnit",
    "SynthesizerAttention",
    "TokenMixing",
    "big_bird_blocks",
    "block_sparse_attention",
    "global_token_attention",
    "lsh_attention",
    "lsh_buckets",
    "reversible_chain",
]
