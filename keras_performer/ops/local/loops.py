"""The loops of local attention over blocks of chunks, forward and backward.

A chunk of queries reads a few chunks of keys: its own, earlier chunks inside the window
and, unless causal, later chunks inside the window. A loop over blocks of chunks
computes the weights; the backward loop recomputes them.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, block_sizes
from keras_performer.ops.heads import Heads
from keras_performer.ops.local.band import Band, chunk_for
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import with_normalizer_gradient
from keras_performer.ops.shapes import ceil_div, pad, positions, size, sizes, slice_of


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
        reach, self.before, window, self.causal, numbers = options
        self.heads = Heads(query, keys.key, keys.value)
        length, chunk = query.shape[1], chunk_for(reach)
        if length is not None:
            chunk = min(chunk, max(length, 1))
        reach_chunks = ceil_div(reach, chunk)
        # a single chunk reads `reach` keys on a side, not whole chunks
        lead = reach if length == chunk else reach_chunks * chunk
        trail, least = (0, 0) if self.causal else (lead, 1 - window)
        self.band = Band(self.heads, chunk, lead, trail, least, window - 1)
        usual = block_sizes()
        examples = (query.shape[0] or usual.batch) * query.shape[2]
        chunks = usual.weights // (examples * chunk * self.band.span)
        # a power of two divides most lengths, which then need no padding
        chunks = 1 << max(chunks.bit_length() - 1, 0)
        blocks = Blocks(size(query, 1), chunks * chunk, multiple=chunk)
        self.blocks = blocks
        # number of blocks on one side that a block reads keys from
        static = isinstance(blocks.tokens, int)
        self.reached = ceil_div(lead, blocks.tokens) if static else reach_chunks
        # number of key blocks before the first query
        self.earlier = ceil_div(self.before, blocks.tokens) if self.before else 0
        self.key_blocks = blocks.after(self.earlier) if self.before else blocks
        self.numbers = None
        if numbers is not None:
            self.numbers = tf.pad(numbers, self._ends(size(numbers, 1)))
        self.gates = None
        if gates is not None:
            ends = self._ends(size(gates, 1))
            self.gates = tf.pad(gates, [*ends, [0, 0], [0, 0]])

    def forward(self, query, keys):
        """Returns arrays of outputs and log-sums."""
        heads, blocks = self.heads, self.blocks
        queries, keys = blocks.cut(query), self._cut(keys)

        def step(i, outputs, log_sums):
            pairs = self._pairs(queries, keys, i, self._indices(i))
            output, log = map(heads.query_block, self.band.forward(*pairs))
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
            pairs = self._pairs(queries, keys, i, indices)
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i),
                heads.query_rows(outputs, i),
                None if dlogs is None else heads.query_rows(dlogs, i),
            )
            log = heads.query_rows(logs, i)
            dx, *dkeys = self.band.backward(pairs, d, log, gates is not None)
            indices = tf.unstack(indices)
            return (
                dqueries.write(i, heads.query_block(dx)),
                *(
                    self._add(array, indices, heads.key_block(z))
                    for array, z in zip(arrays, dkeys)
                ),
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
        lead, trail = self.band.lead, self.band.trail
        total = lead + self.blocks.count * self.blocks.tokens + trail
        return [0, 0], [lead - self.before, total - lead + self.before - count]

    def _within(self):
        """Returns the start and length of the keys to read in the reached blocks."""
        tokens, lead = self.blocks.tokens, self.band.lead
        return self.reached * tokens - lead, lead + tokens + self.band.trail

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

    def _pairs(self, queries, keys, i, indices):
        """Returns the pairs of block i, as in `Band.pairs`."""
        heads, gates = self.heads, self.gates
        x = heads.query_rows(queries, i)
        y, v = (heads.rows_of_keys(self._reached(z, indices)) for z in keys[:2])
        if gates is not None:
            gates = heads.rows_of_keys(self._part(gates, i))
        seen = self._part(keys[2], i)
        return self.band.pairs(x, y, v, seen, self.visible_pairs(i), gates)

    def visible_pairs(self, i):
        """Returns pairs within segments, `(X, chunks, rows, span)`; `None` for all."""
        if self.numbers is None:
            return None
        return self.band.same_segment(self._part(self.numbers, i))

    def _part(self, x, i):
        """Slices a padded tensor of all keys to the keys that query block i reads."""
        return slice_of(x, i * self.blocks.tokens, self._within()[1])
