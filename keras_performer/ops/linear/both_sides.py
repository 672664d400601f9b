"""Bidirectional attention as causal attention to a sequence and to its reverse.

The first gives a query the keys up to its own, the second those after it. Sums start
anew with a segment, and no key is far enough above another to lose a weight.
"""

import tensorflow as tf

from keras_performer.ops.gradients import custom_gradient
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

    The sequence and its reverse are examples of one batch, so that loops are traced and
    compiled once. In each a query sees its own key, with half the weight.

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
            decays its weight, and those between: in the sequence the query, in its
            reverse the key.

    Returns:
        Tensor `(B, T, N, V)` in the dtype of the loops.
    """
    mask, starts = visible.key_mask, visible.starts
    if mask is not None:
        mask = tf.concat([mask, tf.reverse(mask, [1])], 0)
    if starts is not None:
        starts = tf.concat([starts, reversed_starts(starts)], 0)
    if decay is not None:
        # of a pair the key is the later token
        moved = tf.pad(tf.reverse(decay[:, 1:], [1]), [[0, 0], [1, 0], [0, 0]])
        decay = tf.concat([decay, moved], 0)
    features, dtype = (
        kernel.num_features(key.shape[3]),
        compute_dtype(query, key, value),
    )
    shape = 2 * size(key, 0), key.shape[2], features, size(value, 3)
    state, keys = initial_state(*shape, dtype), Recent(key, value, mask)
    reach = Reach(window, bidirectional=True)
    options = starts, chunk_size, jit, decay
    found = attend_within(kernel, reach, query, keys, gain, state, *options, logs=True)
    signs = found.signs
    if signs is None:
        signs = tf.ones_like(found.log_sums)
    return _joined(found.output, found.log_sums, signs)


@custom_gradient
def _joined(output, log_sums, signs):
    """The means of sequences and those of their reverses as means over all keys.

    The sums of weights, whose logarithms are `log_sums`, may have any `signs`.
    """

    def shares():
        logs = _halves(log_sums)
        # what decays hide has a logarithm, too
        seen = tf.where(logs > EMPTY, _halves(signs), tf.zeros_like(logs))
        sums = seen * tf.exp(logs - tf.reduce_max(logs, 0))
        return tf.math.divide_no_nan(sums, tf.reduce_sum(sums, 0))

    def gradient(d):
        means, share = _halves(output), shares()
        further = means - tf.reduce_sum(share * means, 0)
        dlogs = share * tf.reduce_sum(d * further, -1, keepdims=True)
        return _batch_of(share * d), _batch_of(dlogs), tf.zeros_like(signs)

    return tf.reduce_sum(shares() * _halves(output), 0), gradient


def _halves(x):
    """Sequences, and their reverses turned back, `(2, B, T, ...)`."""
    first, second = tf.split(x, 2)
    return tf.stack([first, tf.reverse(second, [1])])


def _batch_of(x):
    """The inverse of `_halves`."""
    first, second = tf.unstack(x)
    return tf.concat([first, tf.reverse(second, [1])], 0)
