"""The loops of local attention over blocks of chunks, forward and backward.

A chunk of queries reads a few chunks of keys: its own, earlier chunks inside the window
and, unless causal, later chunks inside the window. A loop over blocks of chunks
computes the weights; the backward loop recomputes them.
"""

from keras_performer.ops.blocks import Blocks, Halo, block_sizes, examples
from keras_performer.ops.heads import Heads
from keras_performer.ops.local.band import Band, chunk_for
from keras_performer.ops.normalizer import with_normalizer_gradient
from keras_performer.ops.shapes import ceil_div, size


def forward_pass(_, fixed, tensors):
    (options, seen), (query, key, value, gates) = fixed, tensors
    return Local(options, query, key, value, seen, gates).forward(query), ()


def backward_pass(_, fixed, tensors, results, saved, dresults):
    (options, seen), (query, key, value, gates) = fixed, tensors
    loops = Local(options, query, key, value, seen, gates)
    return loops.backward(query, key, value, gates, *results, *dresults)


class Local:
    """The forward and backward loops of local attention.

    Args:
        options: `(reach, before, window, causal, numbers)`: the number of keys on one
            side that a query may see; the number of keys before the first query; the
            window; whether later keys are hidden; and segment numbers of the keys,
            `(B, before + T)`, or `None`.
        query: tensor `(B, T, N, H)`.
        key, value, seen: as in `Recent`, all keys.
        gates: log-decays of the keys, `(B, before + T, K, 1)`, or `None`.
    """

    def __init__(self, options, query, key, value, seen, gates=None):
        reach, before, window, self.causal, numbers = options
        self.heads = Heads(query, key, value)
        length, chunk = query.shape[1], chunk_for(reach)
        if length is not None:
            chunk = min(chunk, max(length, 1))
        # a single chunk reads `reach` keys on a side, not whole chunks
        lead = reach if length == chunk else ceil_div(reach, chunk) * chunk
        trail, least = (0, 0) if self.causal else (lead, 1 - window)
        self.band = Band(self.heads, chunk, lead, trail, least, window - 1)
        rows = max(examples(query) * query.shape[2] * chunk, 1)
        chunks = block_sizes().weights // (rows * self.band.span)
        # a power of two divides most lengths, which then need no padding
        chunks = 1 << max(chunks.bit_length() - 1, 0)
        self.blocks = Blocks(size(query, 1), chunks * chunk, multiple=chunk)
        self.halo = Halo(self.blocks, lead, trail, before)
        keys = key, value, seen, gates, numbers
        self._keys = [None if x is None else self.halo.pad(x) for x in keys]

    def forward(self, query):
        """Returns the output, `(B, T, N, V)`, and log-sums, `(B, T, N, 1)`."""
        heads, blocks = self.heads, self.blocks
        queries, value = blocks.cut(query), self._keys[1]

        def step(i, *arrays):
            found = self.band.forward(*self._pairs(queries, i))
            return [z.write(i, heads.query_block(x)) for z, x in zip(arrays, found)]

        shapes = [blocks.block_shape(query, dim) for dim in (size(value, -1), 1)]
        arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
        arrays = blocks.loop(step, arrays)
        shape, dims = query.shape[:3], (value.shape[-1], 1)
        return tuple(blocks.join(z, (*shape, dim)) for z, dim in zip(arrays, dims))

    def backward(self, query, key, value, gates, output, log_sums, *gradients):
        """Returns gradients of query, key, value and, if given, gates.

        `gradients` are of the output and of the log-sums, which may be `None`.
        """
        heads, blocks = self.heads, self.blocks
        queries, logs, *ends = (
            None if x is None else blocks.cut(x)
            for x in (query, log_sums, gradients[0], output, gradients[1])
        )

        def step(i):
            pairs, log = self._pairs(queries, i), heads.query_rows(logs, i)
            d = with_normalizer_gradient(
                *(None if x is None else heads.query_rows(x, i) for x in ends)
            )
            dx, *dkeys = self.band.backward(pairs, d, log, gates is not None)
            return [heads.query_block(dx)], [heads.key_block(x) for x in dkeys], ()

        keys = [x for x in (key, value, gates) if x is not None]
        dquery, dkeys, _ = self.halo.gradients(step, (), [query], keys, heads.dtype)
        return *dquery, *dkeys

    def _pairs(self, queries, i):
        """Returns the pairs of block i, as in `Band.pairs`."""
        heads = self.heads
        y, v, seen, gates, numbers = (
            None if x is None else self.halo.read(x, i) for x in self._keys
        )
        y, v, gates = (
            None if x is None else heads.rows_of_keys(x) for x in (y, v, gates)
        )
        visible = self.visible_pairs(i, numbers)
        return self.band.pairs(heads.query_rows(queries, i), y, v, seen, visible, gates)

    def visible_pairs(self, i, numbers):
        """Returns pairs within segments, `(X, chunks, rows, span)`; `None` for all."""
        return None if numbers is None else self.band.same_segment(numbers)
