"""The mathematics of attention, as pure functions of tensors."""

from keras_performer.ops.big_bird import SeenBlocks, big_bird_blocks
from keras_performer.ops.block_sparse import block_sparse_attention
from keras_performer.ops.chunk_scan import chunk_scan
from keras_performer.ops.exact import exact_attention, exact_scores
from keras_performer.ops.global_tokens import global_token_attention
from keras_performer.ops.kernels import (
    ActivationKernel,
    EluKernel,
    ExponentialKernel,
    Kernel,
    TaylorKernel,
)
from keras_performer.ops.linear import bidirectional_attention, causal_attention
from keras_performer.ops.local import Recent, local_attention
from keras_performer.ops.lsh import lsh_attention, lsh_buckets, lsh_scores
from keras_performer.ops.merge import merge_states
from keras_performer.ops.projections import gaussian_matrix, orthogonal_gaussian_matrix
from keras_performer.ops.reversible import reversible_chain
from keras_performer.ops.rotary import rotary_embedding
from keras_performer.ops.scores import attention_scores
from keras_performer.ops.segments import segment_starts
from keras_performer.ops.state import (
    State,
    absorb_keys,
    answer_queries,
    initial_state,
)
from keras_performer.ops.visibility import Visibility
from keras_performer.ops.windowed import (
    DecayingState,
    WindowedState,
    windowed_attention,
    with_recent_keys,
)
from keras_performer.ops.windowed_pieces import attend_to_earlier, join_parts

__all__ = [
    "ActivationKernel",
    "DecayingState",
    "EluKernel",
    "ExponentialKernel",
    "Kernel",
    "Recent",
    "SeenBlocks",
    "State",
    "TaylorKernel",
    "Visibility",
    "WindowedState",
    "absorb_keys",
    "answer_queries",
    "attend_to_earlier",
    "attention_scores",
    "bidirectional_attention",
    "big_bird_blocks",
    "block_sparse_attention",
    "causal_attention",
    "chunk_scan",
    "exact_attention",
    "exact_scores",
    "gaussian_matrix",
    "global_token_attention",
    "initial_state",
    "join_parts",
    "local_attention",
    "lsh_attention",
    "lsh_buckets",
    "lsh_scores",
    "merge_states",
    "orthogonal_gaussian_matrix",
    "reversible_chain",
    "rotary_embedding",
    "segment_starts",
    "windowed_attention",
    "with_recent_keys",
]
