"""Visible pairs in the chunks of a block of causal attention.

Keys stand `delay` tokens later than they are, so that row i of a chunk of queries sees
the keys 0 to i of the chunk of keys beside it, and the sums over all chunks before.
"""

import math
import typing

import tensorflow as tf

from keras_performer.ops.shapes import repeat


class Pairs(typing.NamedTuple):
    """Keys of its chunk that a query sees, and rows that see the sums before.

    X is the batch size times key-value heads; a chunk has `rows` queries (tokens times
    the query heads that share a key-value head) and `tokens` keys. Without segments all
    but `visible` and `first_key` are `None`.

    Attributes:
        visible: bool `(rows, tokens)` or `(X, chunks, rows, tokens)`, pairs that a
            weight joins, but for masked keys.
        first_key: int32 `(X, chunks, 1)`, the first visible key of the chunk, with
            segments of that which goes on; `None` for key 0.
        sees_key: bool `(X, chunks, 1, 1)`, whether there is such a key; `None` for
            always.
        goes_on: bool `(X, chunks, rows, 1)`, queries of the segment that goes on from
            the sums before, which they see.
        keys_go_on: bool `(X, chunks, tokens, 1)`, keys of that segment.
        lasts: bool `(X, chunks, tokens, 1)`, keys of the chunk's last segment, which
            are added to the sums.
        whole: bool `(X, chunks, 1, 1)`, chunks of one segment, which goes on: the sums
            before are in those after.
        first_of_rows, first_of_keys: int32 `(X, chunks, rows)` and `(X, chunks,
            tokens)`, the first visible key of the own segment.
        rows_see, keys_see: bool, `(..., 1)`, whether there is such a key.
        log_shares: logarithms of factors of the weights, `(rows, tokens)`; `None` for
            0.
    """

    visible: tf.Tensor
    first_key: tf.Tensor | None = None
    sees_key: tf.Tensor | None = None
    goes_on: tf.Tensor | None = None
    keys_go_on: tf.Tensor | None = None
    lasts: tf.Tensor | None = None
    whole: tf.Tensor | None = None
    first_of_rows: tf.Tensor | None = None
    first_of_keys: tf.Tensor | None = None
    rows_see: tf.Tensor | None = None
    keys_see: tf.Tensor | None = None
    log_shares: tf.Tensor | None = None


def triangle(tokens, group):
    """Earlier keys and the own, bool `(tokens * group, tokens)`."""
    keys = tf.range(tokens)
    return repeat(keys, group, 0)[:, tf.newaxis] >= keys


def log_halves(tokens, group, dtype):
    """Log-shares of a `triangle` that halve the weight of a query's own key."""
    keys = tf.range(tokens)
    own = repeat(keys, group, 0)[:, tf.newaxis] == keys
    return tf.cast(own, dtype) * -math.log(2)


def pairs_of(visible, mask):
    """`Pairs` of one segment.

    Args:
        visible: bool `(rows, tokens)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
    """
    if mask is None:
        return Pairs(visible)
    return Pairs(visible, *_first(tf.squeeze(mask, 3)[:, :, tf.newaxis]))


def pairs_of_segments(visible, mask, of_rows, of_keys, before):
    """`Pairs` of packed sequences.

    Args:
        visible: bool `(rows, tokens)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        of_rows, of_keys: int32 `(X, chunks, rows)` and `(X, chunks, tokens)`, numbers
            of segments.
        before: int32 `(X, chunks, 1)`, the number of the sums before the chunk.
    """
    seen = tf.ones_like(of_keys, tf.bool) if mask is None else tf.squeeze(mask, 3)
    seen = seen[:, :, tf.newaxis]
    keys = of_keys[:, :, tf.newaxis]

    def own_segment(numbers):
        same = numbers[..., tf.newaxis] == keys
        return same, *_first(tf.logical_and(same, seen))

    _, first_key, sees_key = own_segment(before)
    same, first_of_rows, rows_see = own_segment(of_rows)
    _, first_of_keys, keys_see = own_segment(of_keys)
    last = of_keys[:, :, -1, tf.newaxis]
    return Pairs(
        tf.logical_and(visible, same),
        first_key,
        sees_key,
        goes_on=(of_rows == before)[..., tf.newaxis],
        keys_go_on=(of_keys == before)[..., tf.newaxis],
        lasts=(of_keys == last)[..., tf.newaxis],
        whole=(last == before)[..., tf.newaxis],
        first_of_rows=first_of_rows,
        first_of_keys=first_of_keys,
        rows_see=rows_see,
        keys_see=keys_see,
    )


def _first(visible):
    """The first true of the last axis, and whether there is one, `(..., 1)`."""
    # argmax knows no bools; the first of equal numbers is taken
    first = tf.argmax(tf.cast(visible, tf.int32), -1, output_type=tf.int32)
    return first, tf.reduce_any(visible, -1, keepdims=True)
