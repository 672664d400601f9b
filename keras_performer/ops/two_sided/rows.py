"""Rows of queries and keys with what a kernel makes of them."""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY, split_heads
from keras_performer.ops.kernels.parts import each
from keras_performer.ops.normalizer import with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import repeat, size
from keras_performer.ops.two_sided.chunks import Chunks
from keras_performer.ops.visibility import mask_or_all


class Rows:
    """Inputs of the loops, in the rows of `Chunks`.

    Args:
        kernel, query, key, value, mask, gain, window, chunk_size: as in `TwoSided`.
    """

    def __init__(self, kernel, query, key, value, mask, gain, window, chunk_size):
        self.kernel = kernel
        self.num_features = kernel.num_features(key.shape[3])
        options = self.num_features, window, chunk_size
        self.chunks = chunks = Chunks(query, key, value, *options)
        self.gain = _of_rows(gain, chunks)
        blocks = chunks.blocks
        self.hides = mask is not None or blocks.padded or blocks.many
        mask = mask_or_all(mask, key)
        self.seen = chunks.marks(mask)
        self.far_seen = chunks.marks(_sees_far(mask, window))

    def queries(self, queries, r, i, around):
        """Reads block i of the queries for a backward pass.

        Returns:
            Queries, log-sums of all keys, and d; and for far keys projected queries,
            features normalized over all keys, and the gradients for these features.
        """
        kernel = self.kernel
        x, output, log, doutput = (self.chunks.read(z, i, around) for z in queries)
        d = with_normalizer_gradient(doutput, output)
        far = self.add_gain(log - kernel.log_left_out(x), -1)
        # of a query without far keys: no features, whatever all weights are
        seen = self.sees_far(i, around)
        far = tf.where(seen, far, tf.constant(EMPTY, far.dtype))
        normalizer = kernel.normalizer_of(far)
        a = kernel.project_queries(x)
        p = kernel.normalized_query_features(a, r, normalizer)
        return x, log, d, a, p, kernel.divided(d, normalizer)

    def keys(self, keys, values, i, around):
        """Keys, values with their ones, and the mask or `None`."""
        y, v = (self.chunks.read(z, i, around) for z in (keys, values))
        mask = self.chunks.read_marks(self.seen, i, around) if self.hides else None
        return y, with_ones(v), mask

    def sees_far(self, i, around):
        rows = self.chunks.read_marks(self.far_seen, i, around)
        return repeat(rows, self.chunks.heads.group, 1)

    def add_gain(self, log, sign=1):
        by_head = split_heads(log, self.chunks.heads.num_key_value_heads)
        return tf.reshape(by_head + sign * self.gain, tf.shape(log))

    def tiled(self, r, around):
        return each(lambda x: self.chunks.tiled(x, around), r)


def _of_rows(gain, chunks):
    """A number of each query head, `(N, 1)`, for the rows of a chunk of each head."""
    group = chunks.heads.group
    x = repeat(tf.reshape(gain, (-1, 1, group)), chunks.chunk, 1)
    return tf.reshape(x, (-1, chunks.chunk * group, 1))


def _sees_far(mask, window):
    """Queries with a visible key at the distance of the window, or beyond it."""
    length = size(mask, 1)
    positions = tf.range(length)
    first = tf.reduce_min(tf.where(mask, positions, length), 1, keepdims=True)
    last = tf.reduce_max(tf.where(mask, positions, -1), 1, keepdims=True)
    return tf.logical_or(positions - window >= first, positions + window <= last)
