"""Decays: the weight of a pair fades with the gates of the tokens between the two.

    weight_ij *= exp(g_(j+1) + ... + g_i)        j <= i, gates g <= 0
    weight_ij *= exp(g_(i+1) + ... + g_j)        j > i

A difference of two sums would lose small gates beside a huge one, so the sums are kept
in three parts.
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
    """Log-decays of pairs, `(..., tokens, span)`; `FORGET` where a gate hides the key.

    They are differences of running sums. No small gate is lost beside a large one: each
    gate is split into multiples of 256, multiples of 1/256 and a rest, whose sums lose
    nothing up to 4e9 and 65,536, and almost nothing.

    Args:
        gates: of the keys, `(..., span, 1)`.
        tokens: int, how many queries. They are the last keys, too, or stand before the
            last `after`.
        after: int, how many keys there are after the last query; `None` if no query
            sees a later key, whose log-decays are then 0.
    """
    first = size(gates, -2) - tokens - (after or 0)
    hides = gates <= EMPTY
    rest = tf.where(hides, tf.zeros_like(gates), gates)
    parts = []
    for unit in 256.0, 1 / 256:
        parts.append(tf.stop_gradient(tf.round(rest / unit) * unit))
        rest -= parts[-1]

    def rows_and_keys(gates):
        sums = tf.cumsum(gates, axis=-2)
        rows = sums[..., first : first + tokens, :]
        return rows, tf.linalg.matrix_transpose(sums)

    pairs = (rows_and_keys(part) for part in (*parts, rest))
    found = functools.reduce(tf.add, (rows - keys for rows, keys in pairs))
    rows, keys = rows_and_keys(tf.cast(hides, tf.int32))
    if after is None:
        hidden, found = rows > keys, tf.minimum(found, 0.0)
    else:
        hidden, found = rows != keys, -tf.abs(found)
    return tf.where(hidden, tf.constant(FORGET, found.dtype), found)


def pull_between(dpairs, after=None):
    """The gradient of the gates from that of `between`, `(..., span, 1)`."""
    tokens, span = size(dpairs, -2), size(dpairs, -1)
    first = span - tokens - (after or 0)
    queries = first + tf.range(tokens)[:, tf.newaxis]
    later = tf.zeros_like(dpairs) if after is None else -dpairs
    dsums = tf.where(tf.range(span) <= queries, dpairs, later)
    keys = tf.reduce_sum(dsums, -2)
    rows = tf.reduce_sum(dsums, -1)
    # each query stands among the keys
    none = tf.zeros_like(keys)
    rows = tf.concat([none[..., :first], rows, none[..., first + tokens :]], -1)
    found = tf.cumsum(rows - keys, axis=-1, reverse=True)
    return tf.expand_dims(found, -1)


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
