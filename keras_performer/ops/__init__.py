"""The mathematics of linear attention, as pure functions of tensors."""

from keras_performer.ops.bidirectional import bidirectional_attention
from keras_performer.ops.causal import causal_attention
from keras_performer.ops.kernels import (
    ActivationKernel,
    ExponentialKernel,
    initial_state,
)
from keras_performer.ops.projections import gaussian_matrix, orthogonal_gaussian_matrix
from keras_performer.ops.scores import attention_scores

__all__ = [
    "ActivationKernel",
    "ExponentialKernel",
    "attention_scores",
    "bidirectional_attention",
    "causal_attention",
    "gaussian_matrix",
    "initial_state",
    "orthogonal_gaussian_matrix",
]
