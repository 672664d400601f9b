"""Local attention, in time and memory linear in the length."""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_decay,
    check_window,
)
from keras_performer.ops.decays import gates
from keras_performer.ops.local.loops import backward_pass, forward_pass
from keras_performer.ops.local.recent import Recent, check_recent, reach_within
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import TensorLike, compute_dtype
from keras_performer.ops.visibility import Visibility


def local_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    sliding_window: int,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
    state: Recent | None = None,
    *,
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, Recent | None]:
    """Computes softmax attention of every query to the keys near it.

    Query i sees the keys j with `|i - j| < sliding_window`, or with
    `0 <= i - j < sliding_window` if causal. Masked keys count in the distance.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        sliding_window: int W, a query sees keys less than W tokens away. With W = 1 it
            sees only its own token.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`. Defaults to `None`.
        causal: bool, whether to hide later keys. Defaults to `False`.
        state: the last keys before these (causal only), from `Recent.empty` or an
            earlier call. Defaults to `None`.
        decay: as in `causal_attention` and `bidirectional_attention`. Defaults to
            `None`.
        jit_compile: as in `bidirectional_attention`. Defaults to `False`.

    Returns:
        `(output, state)`: a tensor of shape `(B, T, N, V)` in the dtype of `query`, 0
        where no key is visible; and the last W keys, `None` unless causal.

    Reference:
        Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1 (sliding window).

    Example:

    >>> x = tf.random.stateless_normal((1, 9, 1, 2), seed=(0, 2))
    >>> steps = tf.reshape(tf.range(9.0), (1, 9, 1, 1))
    >>> own, _ = local_attention(x, x, steps, sliding_window=1)
    >>> own[0, :, 0, 0].numpy().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask, causal)
    check_attention_inputs(query, key, value, visible)
    check_window("sliding_window", sliding_window, query, key)
    decay = check_decay(decay, query, key, value)
    keys = Recent.of(key, value, visible.key_mask, decay)
    check_recent(state, sliding_window, keys, visible)
    later = None
    if visible.causal:
        later = keys.last(sliding_window, state, visible.starts)
    options = sliding_window, visible.causal, jit_compile, visible.starts
    arguments = query, keys, state, *options
    output, _ = compile.call_in_graph(attend, None, *arguments, jit_compile=jit_compile)
    return tf.cast(output, query.dtype), later


def attend(
    _,
    query,
    keys,
    state,
    sliding_window,
    causal,
    jit_compile=False,
    starts=None,
):
    """Computes `local_attention` of checked arguments.

    `keys` are `Recent`, a key for each query. Returns `(output, log_sums)`, `(B, T, N,
    V)` and `(B, T, N, 1)`, in the dtype of the loops, float32 or float64.
    """
    reach, before = reach_within(sliding_window, query, state), 0
    if state is not None:
        before = reach
        keys = state.between(sliding_window - reach, None).followed_by(keys)
    # keys of a state belong to segment 0, which the first tokens continue
    numbers = None
    if starts is not None:
        numbers = tf.pad(segment_numbers(starts), [[0, 0], [before, 0]])
    decay = None
    if keys.decay is not None:
        dtype = compute_dtype(query, keys.key, keys.value)
        decay = tf.expand_dims(gates(keys.decay, dtype), -1)
    fixed = (reach, before, sliding_window, causal, numbers), keys.seen
    tensors = query, keys.key, keys.value, decay
    passes = forward_pass, backward_pass
    return compile.call_with_gradient(*passes, None, fixed, tensors, jit_compile)
