"""The chunks of a block of causal attention, and who sees whom in them."""

import typing

import tensorflow as tf

from keras_performer.ops.kernels.parts import each
from keras_performer.ops.shapes import size


class ChunkSight(typing.NamedTuple):
    """What is seen in each chunk of a block. Where no segment starts, only pairs count.

    A chunk may hold several segments. The first goes on from the state before the
    chunk, the last goes on after it; those between begin and end in the chunk.

    Attributes:
        pairs: bool tensor, which keys of its own chunk a query row sees, `(rows,
            tokens)`, or with segments `(X, chunks, rows, tokens)`.
        first: bool tensor `(X, chunks, rows, 1)`, queries that see the state before
            their chunk; `None` for all.
        last: bool tensor `(X, chunks, tokens, 1)`, keys that are in the state after
            their chunk; `None` for all.
        only: bool tensor `(X, chunks, 1, 1)`, true for chunks of one segment, which
            goes on: the state before is in that after. `None` for all.
    """

    pairs: tf.Tensor
    first: tf.Tensor | None = None
    last: tf.Tensor | None = None
    only: tf.Tensor | None = None

    @classmethod
    def of_starts(cls, pairs, starts):
        """With segments that start inside chunks.

        Args:
            pairs: bool tensor `(rows, tokens)`, earlier keys of the own chunk.
            starts: bool tensor `(X, chunks, tokens, 1)`, tokens that start a segment.
        """
        keys = tf.math.cumsum(tf.cast(starts, tf.int32), axis=2)
        group = size(pairs, 0) // size(pairs, 1)
        queries = tf.repeat(keys, group, axis=2)
        same = queries == tf.transpose(keys, (0, 1, 3, 2))
        last = tf.reduce_max(keys, 2, keepdims=True)
        return cls(tf.logical_and(pairs, same), queries == 0, keys == last, last == 0)

    def factors(self, parts):
        """What multiplies the state as a chunk is added: 0 or 1, parts, or `None`."""
        if self.only is None:
            return None
        return each(lambda x: tf.cast(self.only, x.dtype), parts)


def where_true(mask, x, otherwise=0.0):
    """x where the mask is true, a number elsewhere; a mask of `None` is true."""
    return x if mask is None else tf.where(mask, x, tf.constant(otherwise, x.dtype))


def to_chunks(x, chunks):
    """`(X, rows, dim)` to chunks `(X, chunks, rows of a chunk, dim)`."""
    return tf.reshape(x, (-1, chunks, size(x, 1) // chunks, size(x, 2)))


def from_chunks(x):
    """The inverse of `to_chunks`."""
    return tf.reshape(x, (-1, x.shape[1] * size(x, 2), size(x, 3)))
