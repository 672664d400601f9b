"""Bidirectional attention as two causal ones, the second over the reversed sequence.

The first gives a query the keys up to its own, the second those after it. Sums start
anew with a segment, and no key is far enough above another to lose a weight.
"""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear.causal import attend_within
from keras_performer.ops.linear.near import Reach
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.segments import reversed_starts
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.state import initial_state


def attend(
    kernel,
    visible,
    query,
    key,
    value,
    window=0,
    gain=None,
    chunk_size=None,
    jit=False,
    decay=None,
):
    """Attention to all visible keys of a query's segment.

    Args:
        kernel: a `Kernel` in the dtype of the loops.
        visible: a `Visibility`.
        query, key, value: tensors, a key for each query.
        window: int, keys at less than this distance are near; 0 for none.
        gain: tensor `(N, 1)`, the logarithm of what multiplies far weights; `None`
            without a window.
        chunk_size: as in `causal_attention`.
        jit: bool, `jit_compile` of `causal_attention`.
        decay: log-decays of the keys, `(B, T, K)`, or `None`. The later token of a pair
            decays its weight, and those between: on this side the query, on the other
            the key.

    Returns:
        Tensor `(B, T, N, V)` in the dtype of the loops.
    """
    dtype = compute_dtype(query, key, value)
    features = kernel.num_features(key.shape[3])
    start = initial_state(size(key, 0), key.shape[2], features, size(value, 3), dtype)
    mask, starts = visible.key_mask, visible.starts

    def part(nearest, query, key, value, mask, starts, decay):
        reach = Reach(max(window, nearest), nearest)
        if window > 1:  # both sides are then one function, traced once
            reach = reach._replace(nearest=tf.constant(nearest))
        keys = Recent(key, value, mask)
        options = starts, chunk_size, jit
        found = attend_within(
            kernel, reach, query, keys, gain, start, *options, decay, logs=True
        )
        signs = found.signs
        if signs is None:
            signs = tf.ones_like(found.log_sums)
        return found.output, found.log_sums, signs

    earlier = part(0, query, key, value, mask, starts, decay)
    backwards = (
        None if x is None else tf.reverse(x, [1]) for x in (query, key, value, mask)
    )
    starts = None if starts is None else reversed_starts(starts)
    if decay is not None:
        none = tf.zeros_like(decay[:, :1])
        decay = tf.concat([none, tf.reverse(decay[:, 1:], [1])], 1)
    later = part(1, *backwards, starts, decay)
    return _joined(earlier, [tf.reverse(x, [1]) for x in later])


def _joined(*parts):
    """Weighted means of sets of keys as one, whatever signs their sums have."""
    outputs, logs, signs = map(tf.stack, zip(*parts))
    peak = tf.stop_gradient(tf.reduce_max(logs, 0))
    # what decays hide has a logarithm, too
    signs = tf.where(logs > EMPTY, signs, tf.zeros_like(signs))
    sums = signs * tf.exp(logs - peak)
    weighted = tf.reduce_sum(sums * outputs, 0)
    return tf.math.divide_no_nan(weighted, tf.reduce_sum(sums, 0))
