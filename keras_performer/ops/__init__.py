"""The mathematics of linear attention, as pure functions of tensors."""

from keras_performer.ops.activation import ActivationKernel
from keras_performer.ops.bidirectional import (
    absorb_keys,
    answer_queries,
    bidirectional_attention,
)
from keras_performer.ops.causal import causal_attention
from keras_performer.ops.chunk_scan import chunk_scan
from keras_performer.ops.exponential import ExponentialKernel
from keras_performer.ops.kernels import initial_state
from keras_performer.ops.projections import gaussian_matrix, orthogonal_gaussian_matrix
from keras_performer.ops.scores import attention_scores

__all__ = [
    "ActivationKernel",
    "ExponentialKernel",
    "absorb_keys",
    "answer_queries",
    "attention_scores",
    "bidirectional_attention",
    "causal_attention",
    "chunk_scan",
    "gaussian_matrix",
    "initial_state",
    "orthogonal_gaussian_matrix",
]
