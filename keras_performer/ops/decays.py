"""Decays: the weight of a pair fades with the gates of the tokens between the two.

    weight_ij *= exp(g_(j+1) + ... + g_i)        j <= i, gates g <= 0
    weight_ij *= exp(g_(i+1) + ... + g_j)        j > i

A difference of two long sums would lose small gates beside a huge one. In a chunk a
pair's decay is summed up from the later token to the earlier; of all pairs it is a
difference of sums that are kept in three parts.
"""

import functools
import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import ceil_div, repeat, size

# A gate that leaves nothing: less a scale of EMPTY it is still far below EMPTY.
FORGET = 3 * EMPTY


def gates(decay, dtype):
    """Log-decays as the loops take them: `EMPTY` and less is `FORGET`."""
    decay = tf.cast(decay, dtype)
    forget = tf.constant(FORGET, dtype)
    return tf.where(decay > EMPTY, decay, forget)


def between(gates, tokens, after=None):
    """Log-decays of pairs, `(..., tokens, span)`.

    Args:
        gates: of the keys, `(..., span, 1)`.
        tokens: int, how many queries. They are the last keys, too, or stand before the
            last `after`.
        after: int, how many keys there are after the last query; `None` if no query
            sees a later key, whose log-decays are then 0.
    """
    up_to_query = _up_to_query(tokens, size(gates, -2), after)
    row = tf.linalg.matrix_transpose(gates)
    none = tf.zeros_like(row)
    earlier = tf.where(up_to_query, row, none)
    earlier = tf.cumsum(earlier, axis=-1, exclusive=True, reverse=True)
    if after is None:
        return earlier
    return earlier + tf.cumsum(tf.where(up_to_query, none, row), axis=-1)


def of_all_pairs(gates):
    """Log-decays of each token for each other, and which of them no gate hides.

    They are differences of running sums. No small gate is lost beside a large one: each
    gate is split into multiples of 256, multiples of 1/256 and a rest, whose sums lose
    nothing up to 4e9 and 65,536, and almost nothing.

    Args:
        gates: of all tokens, `(..., T, 1)`.

    Returns:
        Tensors `(..., T, T)`: of queries and keys the log-decays, and bool.
    """
    hides = gates <= EMPTY
    hidden = tf.cumsum(tf.cast(hides, tf.int32), axis=-2)
    rest = tf.where(hides, tf.zeros_like(gates), gates)
    parts = []
    for unit in 256.0, 1 / 256:
        parts.append(tf.stop_gradient(tf.round(rest / unit) * unit))
        rest -= parts[-1]
    differences = map(_differences, (*parts, rest))
    token = tf.range(size(gates, -2))
    sign = tf.where(token[:, tf.newaxis] >= token, 1.0, -1.0)
    found = functools.reduce(tf.add, differences) * tf.cast(sign, gates.dtype)
    return found, hidden == tf.linalg.matrix_transpose(hidden)


def _differences(gates):
    """The sum of the gates up to each token, less that up to each other."""
    sums = tf.cumsum(gates, axis=-2)
    return sums - tf.linalg.matrix_transpose(sums)


def pull_between(dpairs, after=None):
    """The gradient of the gates from that of `between`, `(..., span, 1)`."""
    drow = tf.cumsum(dpairs, axis=-1, exclusive=True)
    if after is None:
        later = tf.zeros_like(drow)
    else:
        later = tf.cumsum(dpairs, axis=-1, reverse=True)
    up_to_query = _up_to_query(size(dpairs, -2), size(dpairs, -1), after)
    return tf.reduce_sum(tf.where(up_to_query, drow, later), -2)[..., tf.newaxis]


def sum_of_rows(x, tokens):
    """Rows `(X, chunks, tokens * group, dim)` as sums over the rows of each token."""
    shape = size(x, 0), size(x, 1), tokens, size(x, 2) // tokens, size(x, 3)
    return tf.reduce_sum(tf.reshape(x, shape), 3)


def last_decays(decay, count):
    """The log-decays of the last tokens `(B, count, K)`; 0 before the first token."""
    return tf.pad(decay, [[0, 0], [count, 0], [0, 0]])[:, -count:]


def over_last(gates, count):
    """The sum of the last `count` gates of each token and those before, `(B, T, K)`.

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
    """The decays of a block of chunks, logarithms.

    The sums before a chunk fade to its first token, and from there as a key of that
    token does. Rows and sums have a scale, so that not all of their weights vanish.

    Attributes:
        first: of the sums before, up to the first token, `(X, chunks, 1, 1)`.
        past: of them from there to the last token, `(X, chunks, 1, 1)`.
        keys: of each key to the last token, `(X, chunks, tokens, 1)`.
        pairs: of each pair, less the row's scale, `(X, chunks, rows, tokens)`; far
            below 0 where a key is not seen.
        rows: of the sums before, for each row, less its scale, `(X, chunks, rows, 1)`.
        scale: of the rows, `(X, chunks, rows, 1)`: the largest of their decays.
        end: the scale of the sums after each chunk: the largest decay of what is in
            them, `(X, chunks, 1, 1)`.
        level: of the sums before, `(X, chunks, 1, 1)`, for kernels without a
            stabilizer; else 0.
    """

    first: tf.Tensor
    past: tf.Tensor
    keys: tf.Tensor
    pairs: tf.Tensor
    rows: tf.Tensor
    scale: tf.Tensor
    end: tf.Tensor
    level: tf.Tensor

    def added(self, rare):
        """Log-decays of keys as added to the sums, and the rest in rare chunks."""
        # a hidden key after the last visible one may be above its scale
        logs = tf.minimum(self.keys - self.end, 0.0)
        if rare is None:
            return logs, None
        rare = rare[:, :, tf.newaxis, tf.newaxis]
        nothing = tf.zeros_like(logs)
        return tf.where(rare, nothing, logs), tf.where(rare, logs, nothing)


def decays_of(gates, pairs, mask, group, start):
    """The `Decays` of a block.

    Args:
        gates: of far keys, `(X, chunks, tokens, 1)`.
        pairs: `Pairs`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        group: int, rows of a token.
        start: the level of the sums before the block, `(X, 1, 1)`, or `None` for
            kernels with a stabilizer.
    """
    matrix = between(gates, size(gates, 2))
    # axes of one that are known as such; LiteRT has no tf.newaxis of so many axes
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
    """Log-decays, `FORGET` where a mask is false."""
    for mask in masks:
        if mask is not None:
            logs = tf.where(mask, logs, tf.constant(FORGET, logs.dtype))
    return logs


def _largest(*logs):
    """The largest, or `EMPTY`; a choice of scale, which has no gradient."""
    largest = functools.reduce(tf.maximum, logs)
    return tf.stop_gradient(tf.maximum(largest, tf.constant(EMPTY, largest.dtype)))


def _levels(start, first, past, latest):
    """The level of the sums before each chunk, at its first token."""
    levels = []
    level = tf.where(start > EMPTY, start, tf.zeros_like(start))
    for gate, decay, own in zip(
        *(tf.unstack(x, axis=1) for x in (first, past, latest))
    ):
        levels.append(level + gate)
        level = _largest(levels[-1] + decay, own)
    return tf.stack(levels, 1)


def _up_to_query(tokens, span, after):
    queries = tf.range(tokens)[:, tf.newaxis] + (span - tokens - (after or 0))
    return tf.range(span) <= queries
