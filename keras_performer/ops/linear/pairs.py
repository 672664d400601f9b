"""Visible pairs in the chunks of a block of causal attention.

Keys are shifted by `delay` tokens: token i of a chunk of queries sees keys 0 to i of
the chunk of keys with the same index, and the sums over all earlier chunks.
"""

import math
import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import positions


class First(typing.NamedTuple):
    """The first visible key of each row of a chunk.

    Attributes:
        index: int32 `(X, chunks, rows)`.
        exists: bool `(X, chunks, rows, 1)`, whether the row has such a key.
    """

    index: tf.Tensor
    exists: tf.Tensor

    @classmethod
    def of(cls, visible):
        """Finds the first true entry of the last axis."""
        # argmax takes no bools; of equal numbers it returns the first
        index = tf.argmax(tf.cast(visible, tf.int32), -1, output_type=tf.int32)
        return cls(index, tf.reduce_any(visible, -1, keepdims=True))

    def gather(self, b):
        """Returns the log-features of these keys; `EMPTY` where none exists."""
        return tf.where(self.exists, tf.gather(b, self.index, batch_dims=2), EMPTY)


class Pairs(typing.NamedTuple):
    """Visible pairs inside each chunk, and rows that see the sums before it.

    X is the batch size times key-value heads; a chunk has `rows` queries (tokens times
    the query heads that share a key-value head) and `tokens` keys. Without segments,
    the attributes from `goes_on` are `None`.

    Attributes:
        visible: bool `(rows, tokens)` or `(X, chunks, rows, tokens)`, visible
            pairs; ignores the mask of keys.
        log_shares: logarithms of factors of the weights, `(rows, tokens)`; `None` for
            0.
        first: `First` of the chunk, as of one row, with segments only of the one that
            continues the sums before; `None` for key 0.
        goes_on: bool `(X, chunks, rows, 1)`, queries of the segment that continues the
            sums before. Only these see the sums.
        keys_go_on: bool `(X, chunks, tokens, 1)`, keys of that segment.
        lasts: bool `(X, chunks, tokens, 1)`, keys of the chunk's last segment. Only
            these enter the sums.
        whole: bool `(X, chunks, 1, 1)`, chunks in which that segment does not end: the
            sums after include the sums before.
        first_of_rows, first_of_keys: `First` in the segment of each row or key.
    """

    visible: tf.Tensor
    log_shares: tf.Tensor | None
    first: First | None
    goes_on: tf.Tensor | None = None
    keys_go_on: tf.Tensor | None = None
    lasts: tf.Tensor | None = None
    whole: tf.Tensor | None = None
    first_of_rows: First | None = None
    first_of_keys: First | None = None


def triangle(tokens, group):
    """Returns the mask of own and earlier keys, bool `(tokens * group, tokens)`."""
    visible = positions(tokens * group)[:, tf.newaxis] // group >= positions(tokens)
    return tf.convert_to_tensor(visible)


def log_halves(tokens, group, dtype):
    """Returns log-shares that halve the weight of each query's own key."""
    own = positions(tokens * group)[:, tf.newaxis] // group == positions(tokens)
    return tf.cast(own, dtype) * -math.log(2)


def pairs_of(visible, shares, mask):
    """Returns `Pairs` of one segment; arguments are as in `pairs_of_segments`."""
    first = None if mask is None else First.of(tf.linalg.matrix_transpose(mask))
    return Pairs(visible, shares, first)


def pairs_of_segments(visible, shares, mask, of_rows, of_keys, before):
    """Returns `Pairs` of packed sequences.

    Args:
        visible: bool `(rows, tokens)`.
        shares: as `log_shares` in `Pairs`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        of_rows, of_keys: int32 `(X, chunks, rows, 1)` and `(X, chunks, tokens, 1)`,
            numbers of segments.
        before: int32 `(X, chunks, 1, 1)`, the segment of the sums before the chunk.
    """
    keys = tf.linalg.matrix_transpose(of_keys)
    seen = None if mask is None else tf.linalg.matrix_transpose(mask)

    def own_segment(numbers):
        same = numbers == keys
        return same, First.of(same if seen is None else tf.logical_and(same, seen))

    _, first = own_segment(before)
    same, first_of_rows = own_segment(of_rows)
    _, first_of_keys = own_segment(of_keys)
    last = of_keys[:, :, -1:]
    return Pairs(
        tf.logical_and(visible, same),
        shares,
        first,
        goes_on=of_rows == before,
        keys_go_on=of_keys == before,
        lasts=of_keys == last,
        whole=last == before,
        first_of_rows=first_of_rows,
        first_of_keys=first_of_keys,
    )
