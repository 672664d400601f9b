"""Heads as rows: query heads that share a key-value head are rows of one matrix.

Inside a loop a block is `(X, rows, dim)`. X = batch size times key-value heads; the
batch varies slowest. Rows are tokens, or for queries tokens times the query heads that
share a key-value head.
"""

import tensorflow as tf

from keras_performer.ops.blocks import block_of
from keras_performer.ops.shapes import compute_dtype, repeat, size


class Heads:
    """The heads of query `(B, T, N, H)`, key `(B, S, K, H)`, value `(B, S, K, V)`."""

    def __init__(self, query, key, value):
        self.dtype = compute_dtype(query, key, value)
        self.num_key_value_heads = key.shape[2]
        self.group = query.shape[2] // key.shape[2]

    def query_rows(self, x, i):
        """Block i of `(B, count, tokens, N, dim)` as `(X, tokens * N / K, dim)`."""
        if self.group == 1:
            return self.key_rows(x, i)
        x = tf.cast(block_of(x, i), self.dtype)
        tokens, dim = size(x, 1), size(x, 3)
        x = tf.reshape(x, (-1, tokens, self.num_key_value_heads, self.group, dim))
        x = tf.transpose(x, (0, 2, 1, 3, 4))
        return tf.reshape(x, (-1, tokens * self.group, dim))

    def number_shape(self, query, tokens):
        """Returns the shape of one number for each row of a block of queries."""
        return size(query, 0) * self.num_key_value_heads, tokens * self.group, 1

    def key_rows(self, x, i):
        """Block i of `(B, count, tokens, K, dim)` as `(X, tokens, dim)`."""
        return self.rows_of_keys(block_of(x, i))

    def rows_of_keys(self, block):
        """A block of keys `(B, tokens, K, dim)` as `(X, tokens, dim)`."""
        x = tf.cast(block, self.dtype)
        tokens, dim = size(x, 1), size(x, 3)
        return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (-1, tokens, dim))

    def mask_rows(self, mask, i):
        """Block i of a mask `(B, count, tokens)` as `(X, tokens, 1)`; `None` stays."""
        return None if mask is None else self.rows_of_mask(block_of(mask, i))

    def rows_of_mask(self, block):
        """A block of a mask `(B, tokens)` as `(X, tokens, 1)`."""
        rows = repeat(block, self.num_key_value_heads, 0)
        return tf.expand_dims(rows, -1)  # LiteRT lacks tf.newaxis for bools

    def query_block(self, x):
        """The inverse of `query_rows`: one `(B, tokens, N, dim)` block."""
        if self.group == 1:
            return self.key_block(x)
        tokens, dim = size(x, 1) // self.group, size(x, 2)
        x = tf.reshape(x, (-1, self.num_key_value_heads, tokens, self.group, dim))
        x = tf.transpose(x, (0, 2, 1, 3, 4))
        return tf.reshape(x, (-1, tokens, self.num_key_value_heads * self.group, dim))

    def key_block(self, x):
        """The inverse of `key_rows`: one `(B, tokens, K, dim)` block."""
        tokens, dim = size(x, 1), size(x, 2)
        x = tf.reshape(x, (-1, self.num_key_value_heads, tokens, dim))
        return tf.transpose(x, (0, 2, 1, 3))

    def state_rows(self, state):
        """Flattens batch and heads of a `State` into one axis, as loops carry it."""
        r, sums = state
        features, rows = r.shape[-1], size(sums, -2)
        return (
            tf.reshape(tf.cast(r, self.dtype), (-1, 1, features)),
            tf.reshape(tf.cast(sums, self.dtype), (-1, rows, features)),
        )

    def state(self, r, sums):
        """The inverse of `state_rows`: running maxima and sums of a `State`."""
        features, rows = r.shape[-1], size(sums, -2)
        return (
            tf.reshape(r, (-1, self.num_key_value_heads, features)),
            tf.reshape(sums, (-1, self.num_key_value_heads, rows, features)),
        )
