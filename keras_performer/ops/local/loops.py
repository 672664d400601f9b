"""The loops of local attention over blocks of chunks, forward and backward.

A chunk of queries reads a few chunks of keys: its own, earlier chunks inside the window
and, unless causal, later chunks inside the window. A loop over blocks of chunks
computes the weights; the backward loop recomputes them.
"""

import numpy as np
import tensorflow as tf

from keras_performer.ops.blocks import Blocks, block_sizes, has_gpu, has_tpu
from keras_performer.ops.decays import between, pull_between, sum_of_rows
from keras_performer.ops.heads import Heads
from keras_performer.ops.local import weights
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.local.weights import hidden_unless
from keras_performer.ops.normalizer import with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import (
    ceil_div,
    pad,
    positions,
    repeat,
    size,
    sizes,
    slice_of,
)

# Least and most tokens of a chunk for short windows. GPUs and TPUs take MOST: smaller
# products are slow there.
LEAST, MOST = 16, 64
# The most chunks that a window reaches on one side: longer windows get longer chunks.
MAX_REACH = 4


def forward_pass(_, options, query, key, value, seen, gates):
    keys = Recent(key, value, seen)
    loops = Local(options, query, keys, gates)
    output, log_sums = loops.forward(query, keys)
    shape = query.shape[:3]
    return (
        loops.blocks.join(output, (*shape, value.shape[3])),
        loops.blocks.join(log_sums, (*shape, 1)),
    )


def backward_pass(_, options, query, key, value, seen, gates, *ends):
    keys = Recent(key, value, seen)
    loops = Local(options, query, keys, gates)
    dquery, *dkeys = loops.backward(query, keys, *ends)
    given = key, value, gates
    return (
        loops.blocks.join_like(dquery, query),
        *(loops.of_keys(*pair) for pair in zip(dkeys, given)),
    )


class Local:
    """The forward and backward loops, which return arrays of their `blocks`.

    In the loops X is batch size times key-value heads. A chunk of queries has `rows`,
    tokens times the query heads that share a key, and reads `span` keys:

        x       queries, `(X, chunks, rows, H)`
        y, v    keys, values with ones, `(X, chunks, span, ...)`
        p       weights that sum to 1, `(X, chunks, rows, span)`
        d...    a gradient

    Args:
        options: `(reach, before, window, causal, numbers)`: the number of keys on one
            side that a query may see; the number of keys before the first query; the
            window; whether later keys are hidden; and segment numbers of the keys,
            `(B, before + T)`, or `None`.
        query: tensor `(B, T, N, H)`.
        keys: `Recent`, all keys.
        gates: log-decays of the keys, `(B, before + T, K, 1)`, or `None`.
    """

    def __init__(self, options, query, keys, gates=None):
        reach, self.before, self.window, self.causal, numbers = options
        self.heads = Heads(query, keys.key, keys.value)
        self.scale = query.shape[3] ** -0.5
        length, self.chunk = query.shape[1], chunk_for(reach)
        if length is not None:
            self.chunk = min(self.chunk, max(length, 1))
        # a single chunk reads `reach` keys on a side, not whole chunks
        self.single = length is not None and length <= self.chunk
        reach_chunks = ceil_div(reach, self.chunk)
        self.lead = reach if self.single else reach_chunks * self.chunk
        self.trail = 0 if self.causal else self.lead
        self.span = self.lead + self.chunk + self.trail
        usual = block_sizes()
        examples = (query.shape[0] or usual.batch) * query.shape[2]
        chunks = usual.weights // (examples * self.chunk * self.span)
        # a power of two divides most lengths, which then need no padding
        chunks = 1 << max(chunks.bit_length() - 1, 0)
        blocks = Blocks(size(query, 1), chunks * self.chunk, multiple=self.chunk)
        self.blocks = blocks
        self.band = self._band()
        # number of blocks on one side that a block reads keys from
        static = isinstance(blocks.tokens, int)
        self.reached = ceil_div(self.lead, blocks.tokens) if static else reach_chunks
        # number of key blocks before the first query
        self.earlier = ceil_div(self.before, blocks.tokens) if self.before else 0
        self.key_blocks = blocks.after(self.earlier) if self.before else blocks
        self.query_numbers = self.key_numbers = None
        if numbers is not None:
            self.query_numbers = blocks.cut(numbers[:, self.before :])
            self.key_numbers = tf.pad(numbers, self._ends(size(numbers, 1)))
        self.gates = None
        if gates is not None:
            ends = self._ends(size(gates, 1))
            self.gates = tf.pad(gates, [*ends, [0, 0], [0, 0]])

    def forward(self, query, keys):
        """Returns arrays of outputs and log-sums."""
        heads, blocks = self.heads, self.blocks
        queries, keys = blocks.cut(query), self._cut(keys)

        def step(i, outputs, log_sums):
            x, y, v = self._block(queries, keys, i, self._indices(i))
            found = weights.forward(x, y, v, self._hidden(i))
            output, log = (heads.query_block(self._from_chunks(z)) for z in found)
            return outputs.write(i, output), log_sums.write(i, log)

        shapes = (
            blocks.block_shape(query, size(keys[1], 4)),
            blocks.block_shape(query, 1),
        )
        return blocks.loop(step, [blocks.array(heads.dtype, x) for x in shapes])

    def backward(self, query, keys, output, log_sums, doutput, dlog_sums):
        """Computes gradients of query, key, value and, if given, gates.

        Returns:
            Arrays; all except the first begin with `earlier` more blocks.
        """
        heads, blocks = self.heads, self.blocks
        queries, outputs, logs, doutputs = map(
            blocks.cut, (query, output, log_sums, doutput)
        )
        dlogs = None if dlog_sums is None else blocks.cut(dlog_sums)
        given, keys, gates = keys, self._cut(keys), self.gates

        def step(i, dqueries, *arrays):
            indices = self._indices(i)
            x, y, v = self._block(queries, keys, i, indices)
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i),
                heads.query_rows(outputs, i),
                None if dlogs is None else heads.query_rows(dlogs, i),
            )
            d = self._to_chunks(d)
            log = self._to_chunks(heads.query_rows(logs, i))
            dx, *dkeys, dlogits = weights.backward(x, y, v, self._hidden(i), d, log)
            indices = tf.unstack(indices)
            dquery = heads.query_block(self._from_chunks(dx))
            if gates is not None:
                dpairs = sum_of_rows(dlogits, self.chunk)
                dkeys.append(pull_between(dpairs, None if self.causal else self.trail))
            dkeys = (heads.key_block(self._overlapped(z)) for z in dkeys)
            return (
                dqueries.write(i, dquery * self.scale),
                *(self._add(z, indices, x) for z, x in zip(arrays, dkeys)),
            )

        arrays = [blocks.array(heads.dtype)]
        # blocks that were not written yet are 0
        arrays += [
            self.key_blocks.array(heads.dtype, blocks.block_shape(x, size(x, 3)))
            for x in (given.key, given.value, gates)
            if x is not None
        ]
        return blocks.loop(step, arrays)

    def of_keys(self, array, like):
        """Joins an array of blocks to the gradient of keys, values or gates."""
        if not self.before:
            return self.key_blocks.join_like(array, like)
        shape = tf.TensorShape((None, None, *like.shape[2:]))
        x = self.key_blocks.join(array, shape)[:, self._first() :]
        return tf.ensure_shape(tf.cast(x, like.dtype), like.shape)

    def _first(self):
        """Returns the index of the first key in the blocks of keys."""
        return self.earlier * self.blocks.tokens - self.before

    def _cut(self, keys):
        """Returns keys and values in blocks, and their mask, padded with false."""
        seen = pad(keys.seen, self._ends(size(keys.seen, 1)))
        return self._cut_keys(keys.key), self._cut_keys(keys.value), seen

    def _cut_keys(self, x):
        """Cuts `(B, before + T, ...)` into `(B, earlier + count, tokens, ...)`."""
        if self.before:
            x = tf.pad(x, [[0, 0], [self._first(), 0], [0, 0], [0, 0]])
        return self.key_blocks.cut(x)

    def _indices(self, i):
        """Returns the key blocks that query block i reads; outside, the nearest."""
        later = 0 if self.causal else self.reached
        indices = positions(self.reached + 1 + later) + (self.earlier - self.reached)
        return tf.clip_by_value(i + indices, 0, self.key_blocks.count - 1)

    def _ends(self, count):
        """Returns paddings of the axes of a tensor of keys `(B, count)`."""
        first = self.lead - self.before
        total = self.lead + self.blocks.count * self.blocks.tokens + self.trail
        return [0, 0], [first, total - first - count]

    def _within(self):
        """Returns the start and length of the keys to read in the reached blocks."""
        first = self.reached * self.blocks.tokens - self.lead
        return first, self.lead + self.blocks.tokens + self.trail

    def _reached(self, keys, indices):
        """Returns keys or values of the blocks `indices`, `(B, tokens, K, dim)`."""
        x = tf.gather(keys, indices, axis=1)
        x = tf.reshape(x, [size(x, 0), size(x, 1) * size(x, 2), *sizes(x)[3:]])
        return slice_of(x, *self._within())

    def _add(self, array, indices, x):
        """Adds gradients to the key blocks `indices`."""
        first, length = self._within()
        last = len(indices) * self.blocks.tokens - first - length
        x = tf.pad(x, [[0, 0], [first, last], [0, 0], [0, 0]])
        for index, part in zip(indices, tf.split(x, len(indices), 1)):
            array = array.write(index, array.read(index) + part)
        return array

    def _block(self, queries, keys, i, indices):
        """Returns queries, keys, and values with ones, in chunks.

        Queries get a column of ones; keys get a column of addends of their logits.
        """
        heads = self.heads
        x = with_ones(self._to_chunks(heads.query_rows(queries, i) * self.scale))
        y, v = (heads.rows_of_keys(self._reached(z, indices)) for z in keys[:2])
        seen = heads.rows_of_mask(self._part(keys[2], i))
        y = tf.concat([y, hidden_unless(seen, y.dtype)], -1)
        return x, self._spans(y), self._spans(with_ones(v))

    def _band(self):
        """Returns addends of logits: 0, or -1e38 for far keys, `(rows, span)`."""
        group = self.heads.group
        token = positions(self.chunk * group)[:, np.newaxis] // group
        distance = token - (positions(self.span) - self.lead)
        near = abs(distance) < self.window
        if self.causal:
            near &= distance >= 0
        return hidden_unless(near, self.heads.dtype)

    def _hidden(self, i):
        """Returns addends of logits of block i: 0 or log-decays, -1e38 to hide."""
        visible, band = self.visible_pairs(i), self.band
        if visible is not None:
            band += hidden_unless(visible, self.heads.dtype)
        if self.gates is None:
            return band
        gates = self._spans(self.heads.rows_of_keys(self._part(self.gates, i)))
        decays = between(gates, self.chunk, None if self.causal else self.trail)
        return band + repeat(decays, self.heads.group, 2)

    def visible_pairs(self, i):
        """Returns pairs within segments, `(X, chunks, rows, span)`; `None` for all."""
        if self.key_numbers is None:
            return None
        keys = self._part(self.key_numbers, i)
        keys = self._spans(self.heads.rows_of_mask(keys))
        queries = self.heads.mask_rows(self.query_numbers, i)
        queries = self._to_chunks(repeat(queries, self.heads.group, 1))
        return queries == tf.transpose(keys, (0, 1, 3, 2))

    def _part(self, x, i):
        """Slices a padded tensor of all keys to the keys that query block i reads."""
        return slice_of(x, i * self.blocks.tokens, self._within()[1])

    def _spans(self, x):
        """Returns the keys that each chunk reads, `(X, chunks, span, dim)`."""
        if self.single:
            return x[:, tf.newaxis]
        x = tf.reshape(x, (size(x, 0), -1, self.chunk, size(x, 2)))
        chunks = self.blocks.tokens // self.chunk
        shifts = range(self.span // self.chunk)
        return tf.concat([slice_of(x, shift, chunks) for shift in shifts], 2)

    def _overlapped(self, spans):
        """Adds up gradients of the keys that each chunk read, `(X, tokens, dim)`."""
        if self.single:
            return spans[:, 0]
        parts = tf.split(spans, self.span // self.chunk, 2)
        last = len(parts) - 1
        total = tf.add_n(
            [
                tf.pad(part, [[0, 0], [shift, last - shift], [0, 0], [0, 0]])
                for shift, part in enumerate(parts)
            ]
        )
        return tf.reshape(total, (size(total, 0), -1, size(total, 3)))

    def _to_chunks(self, x):
        """Cuts `(X, rows, dim)` into chunks `(X, chunks, rows of a chunk, dim)`."""
        rows = self.chunk * self.heads.group
        return tf.reshape(x, (size(x, 0), -1, rows, size(x, 2)))

    def _from_chunks(self, x):
        """Inverts `_to_chunks`."""
        # not -1 rows: LiteRT needs the shape with which the array was made
        rows = self.blocks.tokens * self.heads.group
        return tf.reshape(x, (-1, rows, size(x, 3)))


def chunk_for(reach):
    """Returns the tokens of a chunk: as few as products of a fast size allow.

    Args:
        reach: int, the number of keys on one side that a query may see.
    """
    small = not (has_gpu() or has_tpu())
    tokens = min(max(1 << reach.bit_length(), LEAST), MOST) if small else MOST
    return max(tokens, ceil_div(reach, MAX_REACH))
