"""Attention to both sides of packed sequences, through two causal loops.

What a query sees of its segment are the keys up to its own, and those after it. Each
part is causal, the second over the reversed sequence, so that sums start anew with a
segment.
"""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear import causal
from keras_performer.ops.segments import reversed_starts
from keras_performer.ops.visibility import Visibility


def attend(kernel, visible, query, key, value, jit_compile=False):
    """`bidirectional_attention` of checked arguments, with segments."""
    earlier = Visibility(visible.key_mask, True, starts=visible.starts)
    parts = [
        causal.attend_in_part(kernel, earlier, query, key, value, jit_compile),
        _later(kernel, visible, query, key, value, jit_compile),
    ]
    return tf.cast(_joined(parts), query.dtype)


def _later(kernel, visible, query, key, value, jit_compile):
    """What the keys after a query's own add."""
    mask = visible.key_mask
    query, key, value, mask = (
        None if x is None else tf.reverse(x, [1]) for x in (query, key, value, mask)
    )
    starts = reversed_starts(visible.starts)
    # a query stands where the key before it does, and sees it and those before
    key, value, mask = (None if x is None else x[:, :-1] for x in (key, value, mask))
    seen = Visibility(mask, True, starts=starts[:, :-1])
    part = causal.attend_in_part(kernel, seen, query[:, 1:], key, value, jit_compile)
    # but not from another segment
    other = starts[:, 1:, tf.newaxis, tf.newaxis]
    first = [[0, 0], [1, 0], [0, 0], [0, 0]]
    nothing = 0.0, EMPTY, 0.0
    hidden = [
        tf.where(other, tf.constant(x, y.dtype), y) for x, y in zip(nothing, part)
    ]
    padded = [tf.pad(y, first, constant_values=x) for x, y in zip(nothing, hidden)]
    return [tf.reverse(x, [1]) for x in padded]


def _joined(parts):
    """Weighted means of sets of keys as one, whatever signs the sums have."""
    outputs, logs, signs = zip(*parts)
    logs = tf.stack(logs)
    peak = tf.stop_gradient(tf.reduce_max(logs, 0))
    sums = tf.stack(signs) * tf.exp(logs - peak)
    weighted = tf.reduce_sum(sums * tf.stack(outputs), 0)
    return tf.math.divide_no_nan(weighted, tf.reduce_sum(sums, 0))
