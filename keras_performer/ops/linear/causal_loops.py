"""The loops of causal attention: blocks of chunks, forward and backward.

A loop over blocks carries the state; inside a block the few chunks are computed side by
side, from the running sums of their features.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, block_sizes, tokens_per_block
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.parts import each, join, split
from keras_performer.ops.linear import causal_forms
from keras_performer.ops.normalizer import with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import size, sizes

# Sums over the chunks of a block are written out one by one: more take long to compile.
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

    def __init__(self, query, key, value, kernel, visible, chunk_size, sides=1):
        self.heads = Heads(query, key, value)
        self.kernel = kernel
        chunk = chunk_size or block_sizes().chunk
        features = sides * kernel.num_features(key.shape[3])
        budget = tokens_per_block(query, features)
        chunks = min(max(budget // chunk, 1), MAX_CHUNKS_PER_BLOCK)
        length = query.shape[1]
        if length is not None:
            chunks = min(chunks, -(-max(length, 1) // chunk))
        self.chunks = chunks
        self.blocks = Blocks(size(query, 1), chunks * chunk, multiple=chunks)
        self.visible = visible.in_blocks(self.blocks, self.heads, size(key, 0))

    def forward(self, query, key, value, r, sums):
        blocks, heads = self.blocks, self.heads
        inputs = map(blocks.cut, (query, key, value))

        def write(i, outputs, normalizers, _, output, normalizer):
            output = outputs.write(i, heads.query_block(output))
            return output, normalizers.write(i, normalizer)

        shapes = (
            blocks.block_shape(query, size(value, 3)),
            heads.query_rows_shape(query, blocks.tokens, 1),
        )
        arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
        (outputs, normalizers), *end, states = self.forward_loop(
            inputs, r, sums, arrays, write
        )
        output = blocks.join(outputs, (*query.shape[:3], value.shape[3]))
        return output, *end, (normalizers.stack(), *states)

    def forward_loop(self, inputs, r, sums, found, write):
        """The loop forward, with `write(i, *found, ...)` for each block.

        Args:
            inputs: queries, keys and values in blocks, as `Heads` takes them.
            r, sums: the state before the first block.
            found: list of arrays.
            write: function of i, the arrays, queries, outputs and normalizers of the
                block, in rows, that returns the arrays.

        Returns:
            `(found, r, sums, states)`: arrays, the state after the last block, and the
            states before each block.
        """
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        queries, keys, values = inputs
        start = [split(x, kernel.num_parts) for x in (r, sums)]
        # one block starts from the initial state: nothing to keep
        keep = blocks.many

        def forward_step(i, r, sums, found, *states):
            if keep:
                states = [s.write(i, x) for s, x in zip(states, (*r, *sums))]
            x, y = heads.query_rows(queries, i), heads.key_rows(keys, i)
            block = self._block(i, x, y, heads.key_rows(values, i), r, sums)
            output, normalizer, r, sums = causal_forms.forward(kernel, block)
            return r, sums, list(write(i, *found, x, output, normalizer)), *states

        kept = (*start[0], *start[1]) if keep else ()
        arrays = [blocks.array(heads.dtype, sizes(x)) for x in kept]
        r, sums, found, *states = blocks.loop(
            forward_step,
            (*start, list(found), *arrays),
            # features of a user may have their own
            has_tapes=kernel.max_rise is None,
        )
        states = [s.stack() for s in states] or [
            x[tf.newaxis] for x in (*start[0], *start[1])
        ]
        return found, join(r), join(sums), states

    def of_queries(self, rows, query):
        """A number of each row, as the loop keeps them, `(B, T, N, 1)`."""
        rows = tf.reshape(rows, (-1, size(rows, 2), 1))
        blocks = self.heads.query_block(rows)
        shape = self.blocks.count, -1, size(blocks, 1), query.shape[2], 1
        return self.blocks.join_blocks(tf.reshape(blocks, shape), (*query.shape[:3], 1))

    def backward(
        self, query, key, value, output, saved, r_end, doutput, dsums, dlog_sums=None
    ):
        heads, blocks = self.heads, self.blocks
        normalizers, *states = saved
        inputs = map(blocks.cut, (query, key, value))
        rows = [
            None if x is None else blocks.cut(x) for x in (output, doutput, dlog_sums)
        ]

        def write(i, dqueries, dkeys, dvalues, *gradients):
            dx, dy, dv = gradients
            return dqueries.write(i, dx), dkeys.write(i, dy), dvalues.write(i, dv)

        arrays = [blocks.array(heads.dtype) for _ in range(3)]
        arrays, dsums, dtrained = self.backward_loop(
            inputs,
            rows,
            lambda i, x: normalizers[i],
            states,
            r_end,
            dsums,
            arrays,
            write,
        )
        gradients = blocks.join_in_turn(arrays, (query, key, value))
        return *gradients, dsums, *dtrained

    def backward_loop(
        self, inputs, rows, normalizer, states, r_end, dsums, found, write
    ):
        """The loop backward, with `write(i, *found, ...)` for each block.

        Args:
            inputs, found: as in `forward_loop`.
            rows: outputs, their gradients, and those of log-sums or `None`, in blocks.
            normalizer: function of i, and of the rows of queries.
            states, r_end: the states before each block, the stabilizer after the last.
            dsums: gradient of the sums after the last block.
            write: function of i, the arrays, and blocks of gradients of queries, keys
                and values, that returns the arrays.

        Returns:
            `(found, dsums, dtrained)`: arrays, the gradient of the sums before the
            first block, and a list of those of what trains.
        """
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        queries, keys, values = inputs
        outputs, doutputs, dlogs = rows

        def backward_step(i, r_new, dsums, found, dtrained):
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
                kernel, block, d, normalizer(i, x), r_new, dsums
            )
            dx, from_queries = kernel.pull_queries(x, da)
            dy, from_keys = kernel.pull_keys(y, block.mask, db, block.v, dv)
            gradients = heads.query_block(dx), *map(heads.key_block, (dy, dv[..., :-1]))
            found = list(write(i, *found, *gradients))
            dtrained = each(lambda *x: tf.add_n(x), dtrained, from_queries, from_keys)
            return r, dsums, found, dtrained

        end = [split(x, kernel.num_parts) for x in (r_end, dsums)]
        dtrained = each(tf.zeros_like, kernel.trained)
        _, dsums, found, dtrained = blocks.loop(
            backward_step, (*end, list(found), dtrained), reverse=True
        )
        return found, join(dsums), dtrained

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
