"""Visible pairs in the chunks of a block of causal attention.

Keys are shifted by `delay` tokens: token i of a chunk of queries sees keys 0 to i of
the chunk of keys with the same index, and the sums over all earlier chunks.
"""

import math
import typing

import tensorflow as tf

from keras_performer.ops.shapes import positions


class Pairs(typing.NamedTuple):
    """Visible pairs inside each chunk, and rows that see the sums before it.

    X is the batch size times key-value heads; a chunk has `rows` queries (tokens times
    the query heads that share a key-value head) and `tokens` keys. Without segments,
    the attributes from `goes_on` to `keys_see` are `None`.

    Attributes:
        visible: bool `(rows, tokens)` or `(X, chunks, rows, tokens)`, visible
            pairs; ignores the mask of keys.
        first_key: int32 `(X, chunks, 1)`, the first visible key of the chunk, with
            segments only of the one that continues the sums before; `None` for key 0.
        sees_key: bool `(X, chunks, 1, 1)`, whether `first_key` exists; `None` if it
            always does.
        goes_on: bool `(X, chunks, rows, 1)`, queries of the segment that continues the
            sums before. Only these see the sums.
        keys_go_on: bool `(X, chunks, tokens, 1)`, keys of that segment.
        lasts: bool `(X, chunks, tokens, 1)`, keys of the chunk's last segment. Only
            these enter the sums.
        whole: bool `(X, chunks, 1, 1)`, chunks in which that segment does not end: the
            sums after include the sums before.
        first_of_rows, first_of_keys: int32 `(X, chunks, rows)` and `(X, chunks,
            tokens)`, the first visible key in the segment of each row or key.
        rows_see, keys_see: bool, `(..., 1)`, whether that key exists.
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
    """Returns the mask of own and earlier keys, bool `(tokens * group, tokens)`."""
    visible = positions(tokens * group)[:, tf.newaxis] // group >= positions(tokens)
    return tf.convert_to_tensor(visible)


def log_halves(tokens, group, dtype):
    """Returns log-shares that halve the weight of each query's own key."""
    own = positions(tokens * group)[:, tf.newaxis] // group == positions(tokens)
    return tf.cast(own, dtype) * -math.log(2)


def pairs_of(visible, mask):
    """Returns `Pairs` of one segment.

    Args:
        visible: bool `(rows, tokens)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
    """
    if mask is None:
        return Pairs(visible)
    return Pairs(visible, *_first(tf.linalg.matrix_transpose(mask)))


def pairs_of_segments(visible, mask, of_rows, of_keys, before):
    """Returns `Pairs` of packed sequences.

    Args:
        visible: bool `(rows, tokens)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        of_rows, of_keys: int32 `(X, chunks, rows, 1)` and `(X, chunks, tokens, 1)`,
            numbers of segments.
        before: int32 `(X, chunks, 1, 1)`, the segment of the sums before the chunk.
    """
    keys = tf.linalg.matrix_transpose(of_keys)
    seen = None if mask is None else tf.linalg.matrix_transpose(mask)

    def own_segment(numbers):
        same = numbers == keys
        return same, *_first(same if seen is None else tf.logical_and(same, seen))

    _, first_key, sees_key = own_segment(before)
    same, first_of_rows, rows_see = own_segment(of_rows)
    _, first_of_keys, keys_see = own_segment(of_keys)
    last = of_keys[:, :, -1:]
    return Pairs(
        tf.logical_and(visible, same),
        first_key,
        sees_key,
        goes_on=of_rows == before,
        keys_go_on=of_keys == before,
        lasts=of_keys == last,
        whole=last == before,
        first_of_rows=first_of_rows,
        first_of_keys=first_of_keys,
        rows_see=rows_see,
        keys_see=keys_see,
    )


def _first(visible):
    """Returns the first true index of the last axis, and whether any, `(..., 1)`."""
    # argmax takes no bools; of equal numbers it returns the first
    first = tf.argmax(tf.cast(visible, tf.int32), -1, output_type=tf.int32)
    return first, tf.reduce_any(visible, -1, keepdims=True)
