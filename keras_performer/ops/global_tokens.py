"""A sliding window, and some tokens that see all and that all see.

Other queries see the keys near them and those of global tokens under one softmax; a
global token counts among the latter, near or not. Global tokens are few: their keys,
and then their queries, are taken out of the sequence, so that no array has the length
twice.
"""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import check_attention_inputs, check_window
from keras_performer.ops.exact import attend_to_seen, attend_with_log_sums
from keras_performer.ops.local import attention as local
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import joined
from keras_performer.ops.shapes import pad, size
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility, mask_or_all


def global_token_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    global_query: TensorLike,
    global_key: TensorLike,
    global_value: TensorLike,
    sliding_window: int,
    num_global_tokens: int,
    visible: Visibility,
    *,
    jit_compile: bool = False,
) -> tf.Tensor:
    """Attention to the keys near a query and to global tokens, of which few are.

    Global tokens are those of `visible.global_tokens`. One of them sees all keys, by
    `global_query`, `global_key` and `global_value`. Any other query i sees the keys j
    with `|i - j| < sliding_window` and those of global tokens under one softmax, by
    `query`, `key` and `value`. With `visible.causal` no query sees a later key.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        global_query, global_key, global_value: tensors of the same shapes.
        sliding_window: int W, the keys to each side that are seen, with the own.
        num_global_tokens: int G, the most global tokens of a sequence. Of more the
            first G are global.
        visible: a `Visibility` of the keys, with `global_tokens`; of one segment.
        jit_compile: as in `local_attention`, for the window.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`, 0 where no key is
        visible. Time and memory are linear in T, and in T * G.

    Reference:
        Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1.

    Example:

    >>> x = tf.random.stateless_normal((1, 9, 1, 2), seed=(0, 2))
    >>> steps = tf.reshape(tf.range(9.0), (1, 9, 1, 1))
    >>> first = tf.range(9)[tf.newaxis] == 0
    >>> visible = Visibility(global_tokens=first)
    >>> heads = 0 * x, 0 * x, steps
    >>> y = global_token_attention(*heads, *heads, 1, 1, visible)
    >>> y[0, :, 0, 0].numpy().tolist()  # of all, and else of the own and the first
    [4.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    """
    heads = [tf.convert_to_tensor(x) for x in (query, key, value)]
    of_global = (global_query, global_key, global_value)
    global_heads = [tf.convert_to_tensor(x) for x in of_global]
    keys = visible._replace(global_tokens=None)
    check_attention_inputs(heads[0], heads[1], heads[2], keys)
    check_attention_inputs(global_heads[0], global_heads[1], global_heads[2], keys)
    check_window("sliding_window", sliding_window, heads[0], heads[1])
    if visible.starts is not None:
        raise ValueError(
            "Global tokens are those of one segment: give each sequence a row of the "
            "batch. Received: Visibility(..., starts=...)"
        )
    counts = sliding_window, num_global_tokens
    arguments = *heads, *global_heads, *counts, visible, jit_compile
    if jit_compile and tf.executing_eagerly():
        output = compile.call_in_graph(_attend, None, *arguments)
    else:
        output = _attend(None, *arguments)
    return tf.cast(output, heads[0].dtype)


def _attend(
    _,
    query,
    key,
    value,
    global_query,
    global_key,
    global_value,
    sliding_window,
    num_global_tokens,
    visible,
    jit_compile,
):
    """`global_token_attention` of checked arguments, in the dtype of the loops."""
    number = tf.math.cumsum(tf.cast(visible.global_tokens, tf.int32), axis=1)
    is_global = tf.logical_and(visible.global_tokens, number <= num_global_tokens)
    key_mask = mask_or_all(visible.key_mask, key)

    others = tf.logical_and(key_mask, tf.logical_not(is_global))
    keys = Recent.of(key, value, others)
    options = sliding_window, visible.causal, jit_compile
    near = local.attend(None, query, keys, None, *options)

    # the places of the global tokens, `(B, G)`; L for those that are not there
    ordinals = tf.broadcast_to(
        tf.range(1, num_global_tokens + 1), (size(query, 0), num_global_tokens)
    )
    # an end that is greater than all, as TensorFlow searches no rows of length 0
    ended = tf.pad(number, [[0, 0], [0, 1]], constant_values=number.dtype.max)
    places = tf.searchsorted(ended, ordinals)
    length = size(query, 1)
    there = places < length

    def taken(x):
        # of a token more: where there is none, that is taken, and hidden
        x = pad(x, [[0, 0], [0, 1]] + [[0, 0]] * (len(x.shape) - 2))
        return tf.gather(x, places, axis=1, batch_dims=1)

    times = tf.range(length)
    seen = tf.logical_and(taken(key_mask), there)[:, tf.newaxis]
    if visible.causal:
        earlier = places[:, tf.newaxis] <= times[:, tf.newaxis]
        seen = tf.logical_and(seen, earlier)
    of_globals = attend_with_log_sums(query, taken(key), taken(value), seen)
    output, _ = joined([near, of_globals])

    seen = key_mask[:, tf.newaxis]
    if visible.causal:
        seen = tf.logical_and(seen, times <= places[..., tf.newaxis])
    rows = attend_to_seen(taken(global_query), global_key, global_value, seen)
    ranks = tf.clip_by_value(number - 1, 0, num_global_tokens - 1)
    rows = tf.gather(rows, ranks, axis=1, batch_dims=1)
    return tf.where(is_global[..., tf.newaxis, tf.newaxis], rows, output)
