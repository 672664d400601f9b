"""The mathematics of attention, as pure functions of tensors."""

from keras_performer.ops.chunk_scan import chunk_scan
from keras_performer.ops.exact import exact_attention, exact_scores
from keras_performer.ops.kernels import (
    ActivationKernel,
    EluKernel,
    ExponentialKernel,
    Kernel,
    TaylorKernel,
)
from keras_performer.ops.linear import bidirectional_attention, causal_attention
from keras_performer.ops.local import Recent, local_attention
from keras_performer.ops.projections import gaussian_matrix, orthogonal_gaussian_matrix
from keras_performer.ops.rotary import rotary_embedding
from keras_performer.ops.segments import segment_starts
from keras_performer.ops.state import State, absorb_keys, answer_queries, initial_state
from keras_performer.ops.visibility import Visibility
from keras_performer.ops.windowed import (
    WindowedState,
    attend_to_earlier,
    join_parts,
    windowed_attention,
    with_recent_keys,
)

__all__ = [
    "ActivationKernel",
    "EluKernel",
    "ExponentialKernel",
    "Kernel",
    "Recent",
    "State",
    "TaylorKernel",
    "Visibility",
    "WindowedState",
    "absorb_keys",
    "answer_queries",
    "attend_to_earlier",
    "bidirectional_attention",
    "causal_attention",
    "chunk_scan",
    "exact_attention",
    "exact_scores",
    "gaussian_matrix",
    "initial_state",
    "join_parts",
    "local_attention",
    "orthogonal_gaussian_matrix",
    "rotary_embedding",
    "segment_starts",
    "windowed_attention",
    "with_recent_keys",
]
