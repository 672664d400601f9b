"""Decays: the gates of the tokens between query i and key j reduce their weight.

    weight_ij *= exp(g_(j+1) + ... + g_i)        j <= i, gates g <= 0
    weight_ij *= exp(g_(i+1) + ... + g_j)        j > i

A difference of two running sums would lose small gates after a huge one, so running
sums have three parts.
"""

import functools
import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import ceil_div, positions, repeat, size

# The log-decay that hides a key: far below EMPTY, even minus a scale of EMPTY.
FORGET = 3 * EMPTY


def gates(decay, dtype):
    """Casts log-decays for the loops, and replaces `EMPTY` or less by `FORGET`."""
    decay = tf.cast(decay, dtype)
    forget = tf.constant(FORGET, dtype)
    return tf.where(decay <= EMPTY, forget, decay)  # NaN stays


def between(gates, tokens, after=None):
    """Returns log-decays of pairs, `(..., tokens, span)`; `FORGET` hides a key.

    Log-decays are differences of running sums. To keep small gates next to a huge one,
    each gate is split into a multiple of 256, a multiple of 1/256 and a rest.
    Sums of these multiples are exact up to 4e9 and 65,536; sums of rests nearly so.

    Args:
        gates: log-decays of the keys, `(..., span, 1)`.
        tokens: int, number of queries: the tokens of the last keys, before `after`
            later keys.
        after: int, number of keys after the last query. `None` if no query sees a later
            key; log-decays of later keys are then 0.
    """
    first = size(gates, -2) - tokens - (after or 0)
    sums = tf.cumsum(tf.concat(_parts(gates), -1), axis=-2)
    rows = tf.split(sums[..., first : first + tokens, :], 4, -1)
    keys = tf.split(tf.linalg.matrix_transpose(sums), 4, -2)
    hides, *found = zip(rows, keys)
    found = tf.add_n([x - y for x, y in found])
    if after is None:
        hidden, found = tf.greater(*hides), tf.minimum(found, 0.0)
    else:
        hidden, found = tf.not_equal(*hides), -tf.abs(found)
    return tf.where(hidden, tf.constant(FORGET, found.dtype), found)


def _parts(gates):
    """Returns 1 for gates that hide keys and 0 for others, and the others in parts."""
    hides = gates <= EMPTY
    rest = tf.where(hides, tf.constant(0.0, gates.dtype), gates)
    parts = [tf.cast(hides, gates.dtype)]
    for unit in 256.0, 1 / 256:
        parts.append(tf.stop_gradient(tf.round(rest / unit) * unit))
        rest -= parts[-1]
    return [*parts, rest]


def sums_to_end(gates):
    """Sums the gates `(B, T, K)` of each token and of all tokens after it."""
    hidden, *found = (tf.cumsum(x, axis=1, reverse=True) for x in _parts(gates))
    forget = tf.constant(FORGET, gates.dtype)
    return tf.where(hidden > 0, forget, tf.add_n(found))


def pull_between(dpairs, after=None):
    """Returns the gradient of gates, `(..., span, 1)`, for the result of `between`."""
    tokens, span = size(dpairs, -2), size(dpairs, -1)
    first = span - tokens - (after or 0)
    queries = first + positions(tokens)[:, tf.newaxis]
    later = 0.0 if after is None else -dpairs
    dsums = tf.where(positions(span) <= queries, dpairs, later)
    keys = tf.reduce_sum(dsums, -2)
    rows = tf.reduce_sum(dsums, -1)
    # moves the rows of queries to the positions of their keys
    rows = tf.pad(rows, [*[[0, 0]] * (len(rows.shape) - 1), [first, after or 0]])
    found = tf.cumsum(rows - keys, axis=-1, reverse=True)
    return tf.expand_dims(found, -1)


def sum_of_rows(x, tokens):
    """Sums the rows of each token of `(X, chunks, tokens * group, dim)`."""
    shape = size(x, 0), size(x, 1), tokens, size(x, 2) // tokens, size(x, 3)
    return tf.reduce_sum(tf.reshape(x, shape), 3)


def over_last(gates, count):
    """Sums the gates of each token and the `count - 1` tokens before it, `(B, T, K)`.

    Args:
        gates: `(B, T, K)`.
        count: int.
    """
    length, heads = size(gates, 1), size(gates, 2)
    pieces = ceil_div(length, count) + 1
    x = tf.pad(gates, [[0, 0], [count, (pieces - 1) * count - length], [0, 0]])
    x = tf.reshape(x, (size(x, 0), pieces, count, heads))
    own = tf.cumsum(x, axis=2)[:, 1:]
    earlier = tf.cumsum(x, axis=2, exclusive=True, reverse=True)[:, :-1]
    found = tf.reshape(own + earlier, (size(x, 0), (pieces - 1) * count, heads))
    return found[:, :length]


class Decays(typing.NamedTuple):
    """Log-decays of a block of chunks.

    The sums before a chunk decay up to its first token, and from there on like a key of
    this token. A scale is subtracted from the log-decays of each row and of the sums
    after each chunk, so that not all of their weights vanish.

    Attributes:
        first: of the sums before a chunk, up to its first token, `(X, chunks, 1, 1)`.
        past: of these sums, from the first token to the last, `(X, chunks, 1, 1)`.
        keys: of each key, up to the last token, `(X, chunks, tokens, 1)`.
        pairs: of each pair, minus the scale of the row, `(X, chunks, rows, tokens)`;
            far below 0 for keys that the row does not see.
        rows: of the sums before, from the first token to each row, minus the scale of
            the row, `(X, chunks, rows, 1)`; includes `level`.
        scale: of each row, `(X, chunks, rows, 1)`: its largest log-decay.
        end: the scale of the sums after each chunk, `(X, chunks, 1, 1)`: the largest
            log-decay in these sums.
        level: the scale of the sums before, at the first token, `(X, chunks, 1, 1)`,
            for kernels without a stabilizer; otherwise 0.
    """

    first: tf.Tensor
    past: tf.Tensor
    keys: tf.Tensor
    pairs: tf.Tensor
    rows: tf.Tensor
    scale: tf.Tensor
    end: tf.Tensor
    level: tf.Tensor


def decays_of(gates, pairs, mask, group, start):
    """Returns the `Decays` of a block.

    `gates` are log-decays of far keys, `(X, chunks, tokens, 1)`; `pairs` and `mask` are
    as in `Block`; `group` is the number of rows of a token. `start`, the level of the
    sums before the block, `(X, 1, 1)`, is `None` for kernels with a stabilizer.
    """
    matrix = between(gates, size(gates, 2))
    # makes static axes of 1; LiteRT does not convert tf.newaxis of so many axes
    to_last = tf.expand_dims(matrix[:, :, -1], -1)
    from_first = tf.expand_dims(matrix[..., 0], -1)
    first, past = (tf.expand_dims(x, 2) for x in (gates[:, :, 0], from_first[:, :, -1]))
    added = _shown(to_last, pairs.lasts, mask)
    latest = tf.reduce_max(added, 2, keepdims=True)
    level = tf.zeros_like(past)
    still = _shown(past, pairs.whole)
    if start is not None:
        level = _levels(start, first, still, latest)
    end = _largest(latest, still + level)

    visible = pairs.visible
    if mask is not None:
        mask = tf.linalg.matrix_transpose(mask)
    shown = _shown(repeat(matrix, group, 2), visible, mask)
    rows = _shown(repeat(from_first, group, 2), pairs.goes_on) + level
    scale = _largest(tf.reduce_max(shown, -1, keepdims=True), rows)
    return Decays(first, past, to_last, shown - scale, rows - scale, scale, end, level)


def _shown(logs, *masks):
    """Replaces log-decays by `FORGET` where a mask is false."""
    for mask in masks:
        if mask is not None:
            logs = tf.where(mask, logs, FORGET)
    return logs


def _largest(*logs):
    """Returns the largest, at least `EMPTY`, as a scale, which has no gradient."""
    largest = functools.reduce(tf.maximum, logs)
    return tf.stop_gradient(tf.maximum(largest, EMPTY))


def _levels(start, first, past, latest):
    """Returns the level of the sums before each chunk, at the chunk's first token."""
    levels = []
    level = tf.where(start > EMPTY, start, 0.0)
    for gate, decay, own in zip(
        *(tf.unstack(x, axis=1) for x in (first, past, latest))
    ):
        levels.append(level + gate)
        level = _largest(levels[-1] + decay, own)
    return tf.stack(levels, 1)
