"""Sums of features over the chunks that the windows of a block do not reach."""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import each, over_rows, split
from keras_performer.ops.shapes import sizes


class Sums:
    """Sums over keys, which queries take, and over queries, which keys take backward.

    Sums are parts `(X, V + 1, M / num_parts)`, as in `TwoSided`.

    Args:
        rows: the `Rows`.
        value_dim: int or scalar tensor V.
    """

    def __init__(self, rows, value_dim):
        self.rows, self.kernel, self.chunks = rows, rows.kernel, rows.chunks
        self.blocks = self.chunks.blocks
        shape = self.chunks.examples, value_dim + 1, rows.num_features
        nothing = tf.zeros(shape, self.chunks.heads.dtype)
        self.nothing = split(nothing, self.kernel.num_parts)

    def before_keys(self, keys, values):
        """Returns the stabilizer of all keys, and a source of the sums before blocks.

        The source is `None` if there is only one block.
        """
        kernel, blocks, nothing = self.kernel, self.blocks, self.nothing
        shape = self.chunks.examples, 1, nothing[0].shape[2]
        empty = tf.fill(shape, tf.constant(EMPTY, self.chunks.heads.dtype))
        r = each(lambda _: empty, nothing)
        if not blocks.many:
            y, _, mask = self.rows.keys(keys, values, 0, 0)
            return self._running_max(r, kernel.project_keys(y, mask)), None

        def step(i, r, sums, last, *kept):
            kept = [z.write(i, x) for z, x in zip(kept, (*r, *sums))]
            y, v, mask = self.rows.keys(keys, values, i, 0)
            b = kernel.project_keys(y, mask)
            r_new = self._running_max(r, b)
            added = over_rows(
                v, kernel.key_features(b, self.rows.tiled(r_new, 0), mask)
            )
            factor = kernel.rescale(r, r_new)
            sums, last = (each(tf.multiply, x, factor) for x in (sums, last))
            return r_new, *self._passed(sums, last, added), *kept

        arrays = [blocks.array(x.dtype, sizes(x)) for x in (*r, *nothing)]
        r, _, _, *kept = self._loop(step, (r, nothing, nothing, *arrays))
        kept = [x.stack() for x in kept]

        def before(i):
            found = tuple(x[i] for x in kept)
            factor = kernel.rescale(found[: kernel.num_parts], r)
            return each(tf.multiply, found[kernel.num_parts :], factor)

        return r, before

    def before_queries(self, queries, r):
        """The source of the sums over queries before block i, parts, or `None`."""
        if not (self.blocks.many and self.chunks.beyond):
            return None
        nothing, r_queries = self.nothing, self.rows.tiled(r, 0)

        def step(i, sums, last, *kept):
            kept = [z.write(i, x) for z, x in zip(kept, sums)]
            *_, p, d = self.rows.queries(queries, r_queries, i, 0)
            return *self._passed(sums, last, over_rows(d, p)), *kept

        arrays = [self.blocks.array(x.dtype, sizes(x)) for x in nothing]
        _, _, *kept = self._loop(step, (nothing, nothing, *arrays))
        kept = [x.stack() for x in kept]
        return lambda i: tuple(x[i] for x in kept)

    def beyond(self, i, added, before, later):
        """For each chunk of block i the sums over chunks that it does not reach.

        Args:
            i: the block.
            added: the sums of the chunks around the block, parts.
            before: function of i, or `None`.
            later: sums after the chunks around the block.

        Returns:
            `(sums, later)`: parts `(chunks * X, V + 1, M / num_parts)`, `None` if there
            are no such chunks; and `later` of the block before.
        """
        chunks = self.chunks
        if not chunks.beyond:
            return None, later
        if before is None:
            return each(chunks.totals_beyond, added), later
        found = each(tf.add, before(i), later)
        around = chunks.around
        passed = each(lambda x: chunks.total(x, around, first=2 * around), added)
        return each(chunks.totals_beyond, added, found), each(tf.add, later, passed)

    def _passed(self, sums, last, added):
        """The sums before the next block, and those of this one's last chunks."""
        total, reach = self.chunks.total, self.chunks.reach
        early = each(lambda x: total(x, last=reach), added)
        last_ = each(lambda x: total(x, first=self.chunks.chunks - reach), added)
        return each(lambda *x: tf.add_n(x), sums, last, early), last_

    def _running_max(self, r, b):
        def largest(x):
            x = tf.reduce_max(x, 1)
            shape = self.chunks.chunks, self.chunks.examples, x.shape[1]
            x = tf.reshape(x, shape)
            return tf.transpose(x, (1, 0, 2))

        return each(tf.stop_gradient, self.kernel.running_max(r, each(largest, b)))

    def _loop(self, step, start):
        return self.blocks.loop(step, start)
