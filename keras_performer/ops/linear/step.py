"""One token of causal attention, for decoding.

It uses no blocks: the number of operations sets the time.
"""

import tensorflow as tf

from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.local.band import hidden_unless, softmax_means
from keras_performer.ops.normalizer import joined, normalize, with_ones
from keras_performer.ops.segments import restarted
from keras_performer.ops.shapes import repeat, size


def one_token(kernel, reach, masks, query, key, value, gain, fades, r, sums):
    """Computes the output for one token, its log-sums, and the state after it.

    Args:
        kernel, reach, masks, gain: as in `Causal`, for T = 1.
        query, key, value: its `tensors`, with their reverses.
        fades: `gates` and `fade` as in `Causal`, if there are any.
        r, sums: the state before the far key, `(X, 1, M)` and `(X, V + 1, M)`.

    Returns:
        `(output, log_sums, signs, r, sums)`: tensors `(B, 1, N, V)`, `(B, 1, N, 1)` and
        `(B, 1, N, 1)` or `None`; and the state after the far key.
    """
    heads = Heads(query, key, value)
    seen, starts = masks
    before = reach.before
    if starts is not None:
        restarts = repeat(starts, heads.num_key_value_heads, 0)[..., tf.newaxis]
        r, sums = restarted(restarts, r, sums)
        if before:  # a token that starts a segment hides the keys of the state
            own = tf.range(before + 1) == before
            seen = tf.logical_and(seen, tf.logical_or(own, tf.logical_not(starts)))
    # one token needs no transposition: its heads are adjacent already
    q = tf.cast(tf.reshape(query, (-1, heads.group, size(query, 3))), r.dtype)
    y, v = (tf.reshape(x[:, :1], (-1, 1, size(x, 3))) for x in (key, value))
    mask = None
    if seen is not None:
        mask = repeat(seen[:, :1], heads.num_key_value_heads, 0)[..., tf.newaxis]
    y, v = (tf.cast(x, r.dtype) for x in (y, v))
    lacks = None
    if fades:
        gates = tf.reshape(fades[0][:, :1], (-1, 1, 1))
        r, sums, lacks = _faded(kernel, gates, mask, r, sums)
    weighted, peak, r, sums = _with_far_key(kernel, q, y, v, mask, r, sums)
    normalizer = kernel.normalizer(peak, weighted[..., -1:])
    output, log = normalize(weighted), kernel.log_normalizer(normalizer)
    if lacks is not None:
        r = r if kernel.max_rise is not None else tf.zeros_like(r) + lacks
        log += sum((tf.reshape(x, (-1, 1, 1)) for x in fades[1:]), start=lacks)
    shape = size(query, 0), 1, query.shape[2]
    output, log = (tf.reshape(x, (*shape, size(x, 2))) for x in (output, log))
    if gain is None:
        signs = tf.reshape(kernel.sign(normalizer), (*shape, 1))
        return output, log, signs, r, sums
    log += gain + kernel.log_left_out(tf.cast(query, log.dtype))
    if not reach.near:
        return output, log, None, r, sums
    window = slice(1, before + 1 - reach.nearest)
    y, v = (heads.rows_of_keys(x[:, window]) for x in (key, value))
    seen = heads.rows_of_mask(seen[:, window])
    band = tf.transpose(hidden_unless(seen, log.dtype), (0, 2, 1))
    if fades:
        sums_ = tf.cumsum(fades[0], axis=1, exclusive=True, reverse=True)[:, window]
        band += tf.transpose(heads.rows_of_keys(sums_), (0, 2, 1))
    near = softmax_means(q * query.shape[3] ** -0.5, y, with_ones(v), band)
    near = [tf.reshape(x, (*shape, size(x, 2))) for x in near]
    output, log = joined([near, (output, log)])
    return output, log, None, r, sums


def _faded(kernel, gates, mask, r, sums):
    """Returns the decayed state, and the log-scale of all far weights."""
    if kernel.max_rise is not None:
        faded = tf.maximum(r + gates, EMPTY)
        # sums of 0 where the gate leaves nothing
        return faded, sums * tf.exp(r + gates - faded), tf.zeros_like(gates)
    level = r[..., :1]
    level = tf.where(level > EMPTY, level, tf.zeros_like(level)) + gates
    own = tf.zeros_like(gates)
    if mask is not None:
        own = tf.where(mask, own, EMPTY)
    end = tf.stop_gradient(tf.maximum(tf.maximum(level, own), EMPTY))
    return r, sums * tf.exp(level - end), end


def _with_far_key(kernel, q, y, v, mask, r, sums):
    """Returns sums of values and ones, their log-scale, and the state with the key."""
    b = kernel.project_keys(y, mask)
    r_new = tf.stop_gradient(kernel.running_max(r, b))
    e, v = kernel.key_features(b, r_new, mask), with_ones(v)
    features, peak = kernel.query_features(kernel.project_queries(q), r_new)
    rescale = kernel.rescale(r, r_new)
    # earlier keys and this key: the output does not wait for the new sums
    past = tf.matmul(features * rescale, sums, transpose_b=True)
    weighted = past + tf.reduce_sum(features * e, -1, keepdims=True) * v
    # a product of shapes (V + 1, 1) and (1, M)
    sums = sums * rescale + tf.reshape(v, (-1, size(v, 2), 1)) * e
    return weighted, peak, r_new, sums
