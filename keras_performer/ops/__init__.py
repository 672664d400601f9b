"""The mathematics of attention, as pure functions of tensors."""

from keras_performer.ops.chunk_scan import chunk_scan
from keras_performer.ops.exact import exact_attention, exact_scores
from keras_performer.ops.kernels import ActivationKernel, ExponentialKernel, Kernel
from keras_performer.ops.linear import (
    attention_scores,
    bidirectional_attention,
    causal_attention,
)
from keras_performer.ops.projections import gaussian_matrix, orthogonal_gaussian_matrix
from keras_performer.ops.state import (
    State,
    absorb_keys,
    answer_queries,
    initial_state,
    merge_states,
)
from keras_performer.ops.visibility import Visibility

__all__ = [
    "ActivationKernel",
    "ExponentialKernel",
    "Kernel",
    "State",
    "Visibility",
    "absorb_keys",
    "answer_queries",
    "attention_scores",
    "bidirectional_attention",
    "causal_attention",
    "chunk_scan",
    "exact_attention",
    "exact_scores",
    "gaussian_matrix",
    "initial_state",
    "merge_states",
    "orthogonal_gaussian_matrix",
]
