"""The loops of causal attention: blocks of chunks, forward and backward.

A loop over blocks carries the state; inside a block the few chunks are computed side by
side, from the running sums of their features.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.parts import each, join, split
from keras_performer.ops.linear import causal_forms
from keras_performer.ops.normalizer import with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import size

# Tokens of a chunk: the products inside a chunk cost chunk_size * (M + V) a token, the
# chunk states V * M / chunk_size. 64 measured fastest on CPUs for M = 256, V = 64.
DEFAULT_CHUNK_SIZE = 64
MAX_CHUNKS_PER_BLOCK = 8


def forward_pass(kernel, visible, chunk_size, query, key, value, r, sums):
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    return loops.forward(query, key, value, r, sums)


def sums_of_weights(kernel, visible, chunk_size, query, key, value, saved):
    """Logarithms of the sizes of sums of weights, and their signs, `(B, T, N, 1)`."""
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    numbers = kernel.log_normalizer(saved[0]), kernel.sign(saved[0])
    return tuple(loops.of_queries(rows, query) for rows in numbers)


def backward_pass(kernel, visible, chunk_size, query, key, value, *saved):
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    return loops.backward(query, key, value, *saved)


class Causal:
    """The forward and the backward loop; they share sizes, blocks and what is visible.

    In the loops, and in the forms of a block, with the shapes of `Kernel`:

        x, a, p    queries, projected queries, their features
        y, b, e    keys, projected keys, their features
        v          values with a column of ones
        r, sums    stabilizer and sums before the block; r_new, after them
        reference  the stabilizer inside the block
        d...       a gradient; d alone is that of the sums of a query, times its
                   normalizer
    """

    def __init__(self, query, key, value, kernel, visible, chunk_size):
        self.heads = Heads(query, key, value)
        self.kernel = kernel
        chunk = chunk_size or DEFAULT_CHUNK_SIZE
        budget = tokens_per_block(query, kernel.num_features(key.shape[3]))
        chunks = min(max(budget // chunk, 1), MAX_CHUNKS_PER_BLOCK)
        length = query.shape[1]
        if length is not None:
            chunks = min(chunks, -(-max(length, 1) // chunk))
        self.chunks = chunks
        self.blocks = Blocks(size(query, 1), chunks * chunk, multiple=chunks)
        self.visible = visible.in_blocks(self.blocks, self.heads, size(key, 0))

    def forward(self, query, key, value, r, sums):
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        queries, keys, values = (blocks.cut(x) for x in (query, key, value))
        start = [split(x, kernel.num_parts) for x in (r, sums)]
        # one block starts from the initial state: nothing to keep
        keep = blocks.many

        def forward_step(i, r, sums, outputs, normalizers, *states):
            if keep:
                states = [s.write(i, x) for s, x in zip(states, (*r, *sums))]
            x, y = heads.query_rows(queries, i), heads.key_rows(keys, i)
            block = self._block(i, x, y, heads.key_rows(values, i), r, sums)
            output, normalizer, r, sums = causal_forms.forward(kernel, block)
            output = heads.query_block(output)
            return (
                r,
                sums,
                outputs.write(i, output),
                normalizers.write(i, normalizer),
                *states,
            )

        num_states = 2 * kernel.num_parts if keep else 0
        arrays = [blocks.array(heads.dtype) for _ in range(2 + num_states)]
        r, sums, outputs, normalizers, *states = blocks.loop(
            forward_step, (*start, *arrays)
        )
        output = blocks.join(outputs, (*query.shape[:3], value.shape[3]))
        states = [s.stack() for s in states] or [
            x[tf.newaxis] for x in (*start[0], *start[1])
        ]
        return output, join(r), join(sums), (normalizers.stack(), *states)

    def of_queries(self, rows, query):
        """A number of each row, as the loop keeps them, `(B, T, N, 1)`."""
        rows = tf.reshape(rows, (-1, size(rows, 2), 1))
        blocks = self.heads.query_block(rows)
        shape = self.blocks.count, -1, size(blocks, 1), query.shape[2], 1
        return self.blocks.join_blocks(tf.reshape(blocks, shape), (*query.shape[:3], 1))

    def backward(
        self, query, key, value, output, saved, r_end, doutput, dsums, dlog_sums=None
    ):
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        normalizers, *states = saved
        queries, keys, values, outputs, doutputs = (
            blocks.cut(x) for x in (query, key, value, output, doutput)
        )
        dlogs = None if dlog_sums is None else blocks.cut(dlog_sums)

        def backward_step(i, r_new, dsums, dqueries, dkeys, dvalues, dtrained):
            state = tuple(s[i] for s in states)
            r, sums = state[: kernel.num_parts], state[kernel.num_parts :]
            x, y = heads.query_rows(queries, i), heads.key_rows(keys, i)
            block = self._block(i, x, y, heads.key_rows(values, i), r, sums)
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i),
                heads.query_rows(outputs, i),
                None if dlogs is None else heads.query_rows(dlogs, i),
            )
            da, db, dv, dsums = causal_forms.backward(
                kernel, block, d, normalizers[i], r_new, dsums
            )
            dx, from_queries = kernel.pull_queries(x, da)
            dy, from_keys = kernel.pull_keys(y, block.mask, db, block.v, dv)
            return (
                r,
                dsums,
                dqueries.write(i, heads.query_block(dx)),
                dkeys.write(i, heads.key_block(dy)),
                dvalues.write(i, heads.key_block(dv[..., :-1])),
                each(lambda *x: tf.add_n(x), dtrained, from_queries, from_keys),
            )

        end = [split(x, kernel.num_parts) for x in (r_end, dsums)]
        arrays = [blocks.array(heads.dtype) for _ in range(3)]
        dtrained = each(tf.zeros_like, kernel.trained)
        _, dsums, *arrays, dtrained = blocks.loop(
            backward_step, (*end, *arrays, dtrained), reverse=True
        )
        gradients = [
            blocks.join_like(array, x) for array, x in zip(arrays, (query, key, value))
        ]
        return *gradients, join(dsums), *dtrained

    def _block(self, i, x, y, v, r, sums):
        """What computes block i, from rows of queries, keys and values."""
        mask = self.visible.rows(i)
        return causal_forms.Block(
            self.chunks,
            self.kernel.project_queries(x),
            self.kernel.project_keys(y, mask),
            with_ones(v),
            mask,
            self.visible.starts(i),
            self.visible.pairs(size(y, 1) // self.chunks),
            r,
            sums,
        )
