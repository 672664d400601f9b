"""Chunks of queries, and those of keys that a window reaches to both sides.

Rows are `(chunks * X, rows of a chunk, dim)`, where X is batch size times key-value
heads and the chunks vary slowest: neighbours are slices that need no copy.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.heads import Heads, block_of, blocks_of
from keras_performer.ops.local.loops import chunk_for
from keras_performer.ops.shapes import ceil_div, pad, repeat, size, slice_of

# Of a block: which of its chunks sees which is a matrix.
MAX_CHUNKS = 64


class Chunks:
    """A sequence cut into blocks, and these into chunks.

    Attributes:
        chunk: int, tokens of a chunk.
        reach: int, how many chunks the window reaches to one side.
        blocks: the `Blocks`.
        chunks: int or scalar tensor, how many chunks a block has.
        around: int, how many further chunks are read to each side of a block.
        lead: int, their tokens.
        beyond: bool, whether there may be chunks that a window does not reach.
        examples: int or scalar tensor X.

    Args:
        query, key, value: tensors.
        num_features: int M.
        window: int, how far from a query the first key is that it does not reach.
        chunk_size: int, tokens of a chunk; `None` for the default.
    """

    def __init__(self, query, key, value, num_features, window, chunk_size):
        self.heads = Heads(query, key, value)
        self.examples = size(query, 0) * self.heads.num_key_value_heads
        length = size(query, 1)
        # of smaller chunks sums are larger than products
        chunk = chunk_size or chunk_for(window - 1, least=32)
        if isinstance(length, int):
            chunk = max(min(chunk, length), 1)
        self.chunk, self.reach = chunk, ceil_div(window - 1, chunk)
        if isinstance(length, int):
            self.reach = min(self.reach, max(ceil_div(length, chunk), 1) - 1)
        tokens = tokens_per_block(query, num_features)
        if isinstance(length, int) and length <= 2 * tokens:
            tokens = length  # to have nothing around it makes up for the size
        chunks = max(min(ceil_div(tokens, chunk), MAX_CHUNKS), 2 * self.reach, 1)
        self.blocks = blocks = Blocks(length, chunks * chunk, multiple=chunk)
        self.chunks = blocks.tokens // chunk
        # there is nothing around a single block
        self.around = self.reach if blocks.many else 0
        self.lead = self.around * chunk
        static = isinstance(blocks.tokens, int) and isinstance(blocks.count, int)
        self.beyond = not static or blocks.count * self.chunks > self.reach + 1

    # -- Tokens and rows.

    def rows_of(self, x):
        """`(B, tokens, heads, dim)` as rows."""
        x = x if x.dtype == tf.bool else tf.cast(x, self.heads.dtype)
        heads, dim = self.heads.num_key_value_heads, size(x, 3)
        # all sizes are said: of no examples none can be inferred
        group, chunks = x.shape[2] // heads, size(x, 1) // self.chunk
        x = tf.reshape(x, (size(x, 0), chunks, self.chunk, heads, group * dim))
        x = tf.transpose(x, (1, 0, 3, 2, 4))
        return tf.reshape(x, (chunks * self.examples, self.chunk * group, dim))

    def block_of_rows(self, x, around=0):
        """The inverse of `rows_of`."""
        heads, dim = self.heads.num_key_value_heads, size(x, 2)
        group, batch = size(x, 1) // self.chunk, self.examples // heads
        chunks = self.chunks + 2 * around
        x = tf.reshape(x, (chunks, batch, heads, self.chunk, group * dim))
        x = tf.transpose(x, (1, 0, 3, 2, 4))
        return tf.reshape(x, (batch, chunks * self.chunk, heads * group, dim))

    def read(self, blocks, i, around):
        """Rows of block i and of so many chunks around it."""
        if not around:
            return self.rows_of(block_of(blocks, i))
        tokens, lead = self.blocks.tokens, around * self.chunk
        reached = ceil_div(lead, tokens) if isinstance(tokens, int) else around
        indices = i + tf.range(-reached, reached + 1)
        # at the ends the nearest: what is read there is hidden
        indices = tf.clip_by_value(indices, 0, self.blocks.count - 1)
        x = blocks_of(blocks, indices)
        return self.rows_of(slice_of(x, reached * tokens - lead, tokens + 2 * lead))

    def marks(self, x):
        """`(B, T)` bools, and false for `reach` chunks around the blocks."""
        first = self.reach * self.chunk
        total = self.blocks.count * self.blocks.tokens
        return pad(x, [[0, 0], [first, total - size(x, 1) + first]])

    def read_marks(self, marks, i, around):
        """Rows of keys of block i and around it, `(chunks * X, tokens, 1)`."""
        first = i * self.blocks.tokens + (self.reach - around) * self.chunk
        x = slice_of(marks, first, self.blocks.tokens + 2 * around * self.chunk)
        chunks = self.chunks + 2 * around
        x = tf.reshape(x, (size(x, 0), chunks, self.chunk))
        x = repeat(tf.transpose(x, (1, 0, 2)), self.heads.num_key_value_heads, 1)
        return tf.reshape(x, (chunks * self.examples, self.chunk, 1))

    # -- A chunk of queries, and the one of keys k chunks later.

    def queries_at(self, x, k):
        """Rows of the queries of a block that have keys k chunks later."""
        first, last = self._missing(k)
        count = self.chunks - first - last
        return self._slice(x, first, count) if first or last else x

    def keys_at(self, x, k):
        """Rows of these keys, from those of the chunks around the block."""
        first, last = self._missing(k)
        return self._slice(x, first + k + self.around, self.chunks - first - last)

    def to_queries(self, x, k):
        """The inverse of `queries_at`, zeros elsewhere."""
        return self._padded(x, *self._missing(k))

    def to_keys(self, x, k=0):
        """The inverse of `keys_at`, zeros elsewhere."""
        first, last = self._missing(k)
        return self._padded(x, first + k + self.around, last - k + self.around)

    def within(self, x):
        """The rows of a block from those of the chunks around it."""
        return self._slice(x, self.around, self.chunks) if self.around else x

    def reached(self, x):
        """Rows with `reach` chunks around a block, zeros where there are none."""
        return self._padded(x, *[self.reach - self.around] * 2)

    def spans(self, x):
        """Rows that a window reaches, `(chunks * X, span, dim)`, of `reached` rows."""
        offsets = range(2 * self.reach + 1)
        return tf.concat([self._slice(x, k, self.chunks) for k in offsets], 1)

    def of_spans(self, x):
        """The sum over spans of what is said of their keys."""
        offsets = range(-self.reach, self.reach + 1)
        parts = tf.split(x, len(offsets), 1)
        parts = [self.to_keys(self.queries_at(x, k), k) for k, x in zip(offsets, parts)]
        return tf.add_n(parts)

    # -- Sums over chunks.

    def tiled(self, x, around):
        """The same `(X, rows, dim)` for each chunk."""
        return tf.tile(x, (self.chunks + 2 * around, 1, 1))

    def total(self, x, around=0, first=0, last=0):
        """The sum over chunks without the first and the last ones, `(X, rows, dim)`."""
        shape = size(x, 1), size(x, 2)
        x = tf.reshape(x, (self.chunks + 2 * around, self.examples, *shape))
        return tf.reduce_sum(x[first : size(x, 0) - last], 0)

    def totals_beyond(self, x, further=None):
        """For each chunk the sum over those that it does not reach.

        Args:
            x: rows of the chunks around the block.
            further: what to add to all, `(X, rows, dim)`.
        """
        shape = size(x, 1), size(x, 2)
        own = tf.range(self.chunks)[:, tf.newaxis] + self.around
        distance = own - tf.range(self.chunks + 2 * self.around)
        seen = tf.cast(tf.abs(distance) > self.reach, x.dtype)
        flat = tf.reshape(x, (size(seen, 1), self.examples * shape[0] * shape[1]))
        found = tf.matmul(seen, flat)
        if further is not None:
            found += tf.reshape(further, (1, -1))
        return tf.reshape(found, (self.chunks * self.examples, *shape))

    def _missing(self, k):
        """Numbers of chunks of queries without keys k later, first and last ones."""
        return max(-k - self.around, 0), max(k - self.around, 0)

    def _slice(self, x, first, count):
        start = first * self.examples, 0, 0
        return tf.slice(x, start, (count * self.examples, size(x, 1), size(x, 2)))

    def _padded(self, x, first, last):
        if not (first or last):
            return x
        ends = first * self.examples, last * self.examples
        return tf.pad(x, [ends, [0, 0], [0, 0]])
