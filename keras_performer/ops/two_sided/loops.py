"""The loops of attention with an exact window to both sides, near and far keys at once.

In the chunks that a query's window reaches it sees key by key: near ones by their exact
weights, others by estimated ones. Of chunks beyond it sees the sums of their features.
A loop goes over blocks of chunks. Sums over what lies before a block come from a loop
of their own, those over what lies after it from the main loop, which begins at the end.

The features of all keys have one stabilizer. Where what is far is so much smaller than
what is near that it is lost under it, `forward` says so.
"""

import tensorflow as tf

from keras_performer.ops.heads import block_of
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
    sum_of_products,
)
from keras_performer.ops.local import weights
from keras_performer.ops.normalizer import joined, normalize, with_ones
from keras_performer.ops.shapes import ceil_div, repeat, size, slice_of
from keras_performer.ops.two_sided.rows import Rows
from keras_performer.ops.two_sided.sums import Sums


class TwoSided:
    """The loops forward and backward; they share sizes, and who sees whom.

    In the loops, with rows, chunks and X as `Chunks` has them:

        x, a, p    queries, projected queries, their features
        y, b, e    keys, projected keys, their features, of chunks around a block, too
        v          values with a column of ones
        r          the stabilizer, parts `(X, 1, M / num_parts)`
        sums       of values weighted by features, or of gradients, over chunks that a
                   query's, or a key's, window does not reach: parts `(X, V + 1, M /
                   num_parts)`
        d...       a gradient; d alone is that of the sums of a query, times its
                   normalizer

    Args:
        kernel: a `Kernel`.
        query, key, value: tensors.
        mask: bool tensor `(B, T)`, true for visible keys, or `None`.
        gain: tensor `(N, 1)`, the logarithm of what multiplies far weights.
        window: int, keys at less than this distance are near.
        chunk_size: int, tokens of a chunk; `None` for the default.
    """

    def __init__(self, kernel, query, key, value, mask, gain, window, chunk_size):
        self.kernel = kernel
        given = query, key, value, mask, gain, window, chunk_size
        self.rows = Rows(kernel, *given)
        self.sums = Sums(self.rows, size(value, 3))
        self.chunks = chunks = self.rows.chunks
        self.heads, self.blocks = chunks.heads, chunks.blocks
        self.scale = query.shape[3] ** -0.5

        token = repeat(tf.range(chunks.chunk), self.heads.group, 0)[:, tf.newaxis]
        offsets = range(-chunks.reach, chunks.reach + 1)
        keys = tf.range(chunks.chunk * len(offsets)) - chunks.reach * chunks.chunk
        near = tf.abs(token - keys) < window
        self.band = weights.hidden_unless(near, self.heads.dtype)
        far = tf.split(tf.logical_not(near), len(offsets), 1)
        # without chunks in which all are near
        least = max(ceil_div(window + 1, chunks.chunk) - 1, 0)
        self.far = {k: x for k, x in zip(offsets, far) if abs(k) >= least}

    def forward(self, query, key, value):
        """Returns the output, log-sums, and if far weights were lost.

        Their shapes are `(B, T, N, V)`, `(B, T, N, 1)` and `()`, the last bool.
        """
        kernel, blocks, chunks = self.kernel, self.blocks, self.chunks
        queries, keys, values = map(blocks.cut, (query, key, value))
        r, before = self.sums.before_keys(keys, values)
        r_queries, r_keys = self.rows.tiled(r, 0), self.rows.tiled(r, chunks.around)

        def step(i, sums, lost, *arrays):
            x = chunks.rows_of(block_of(queries, i))
            y, v, mask = self.rows.keys(keys, values, i, chunks.around)
            p, peak = kernel.query_features(kernel.project_queries(x), r_queries)
            e = kernel.key_features(kernel.project_keys(y, mask), r_keys, mask)
            found, sums = self.sums.beyond(i, over_rows(v, e), before, sums)
            weighted = [] if found is None else [over_features(p, found)]
            for k in self.far:
                part = tf.matmul(self._far_weights(k, p, e), chunks.keys_at(v, k))
                weighted.append(chunks.to_queries(part, k))
            weighted = tf.add_n(weighted)
            normalizer = kernel.normalizer(peak, weighted[..., -1:])
            log = kernel.log_normalizer(normalizer)
            if kernel.max_rise is not None:
                small = log - peak < -kernel.max_rise
                some = tf.logical_and(small, self.rows.sees_far(i, 0))
                lost = tf.logical_or(lost, tf.reduce_any(some))
            log = self.rows.add_gain(log + kernel.log_left_out(x))
            near = weights.forward(*self._band(i, x, y, v))
            found = joined([near, (normalize(weighted), log)])
            found = map(chunks.block_of_rows, found)
            return sums, lost, *(z.write(i, x) for z, x in zip(arrays, found))

        shapes = [blocks.block_shape(query, n) for n in (size(value, 3), 1)]
        arrays = [blocks.array(self.heads.dtype, shape) for shape in shapes]
        start = self.sums.nothing, tf.constant(False), *arrays
        _, lost, *arrays = self._loop(step, start, reverse=True)
        shapes = [(*query.shape[:3], n) for n in (value.shape[3], 1)]
        return *map(blocks.join, arrays, shapes), lost

    def backward(self, query, key, value, output, log_sums, doutput):
        """Gradients of query, key, value, gain, and of what of the kernel trains."""
        kernel, blocks, chunks = self.kernel, self.blocks, self.chunks
        queries = [blocks.cut(x) for x in (query, output, log_sums, doutput)]
        keys, values = blocks.cut(key), blocks.cut(value)
        r, before = self.sums.before_keys(keys, values)
        r_around = self.rows.tiled(r, chunks.around)
        dbefore = self.sums.before_queries(queries, r)

        def step(i, sums, dsums, dtrained, dgain, dlater, *arrays):
            x, log, d, a, p, d_far = self.rows.queries(
                queries, r_around, i, chunks.around
            )
            dfound, dsums = self.sums.beyond(i, over_rows(d_far, p), dbefore, dsums)
            x, log, d, a, d_far = map(chunks.within, (x, log, d, a, d_far))
            p = each(chunks.within, p)
            y, v, mask = self.rows.keys(keys, values, i, chunks.around)
            b = kernel.project_keys(y, mask)
            e = kernel.key_features(b, r_around, mask)
            found, sums = self.sums.beyond(i, over_rows(v, e), before, sums)
            parts = [self._pair_gradients(k, p, e, v, d_far) for k in self.far]
            if found is not None:
                own_v, own_e = chunks.within(v), each(chunks.within, e)
                parts.append(
                    (
                        per_feature(d_far, found),
                        each(chunks.to_keys, per_feature(own_v, dfound)),
                        chunks.to_keys(over_features(own_e, dfound)),
                    )
                )
            dp, de, dv = zip(*parts)
            dp, de = (each(lambda *x: tf.add_n(x), *z) for z in (dp, de))
            dv = tf.add_n(dv)
            dx, from_queries = kernel.pull_queries(x, kernel.query_gradient(a, p, dp))
            db = kernel.key_gradient(b, e, de, mask)
            dy, from_keys = kernel.pull_keys(y, mask, db, v, dv)
            dtrained = each(lambda *x: tf.add_n(x), dtrained, from_queries, from_keys)
            band = self._band(i, x, y, v)
            dx_near, *near, _ = weights.backward(*band, d, log)
            near = map(chunks.of_spans, near)
            left = sum_of_products(p, dp)
            dx += dx_near * self.scale + kernel.pull_left_out(x, left)
            dgain += tf.reduce_sum(chunks.block_of_rows(left), (0, 1))
            dkeys = [x + y for x, y in zip((dy, dv[..., :-1]), near)]
            dx = chunks.block_of_rows(dx)
            dkeys = [chunks.block_of_rows(x, chunks.around) for x in dkeys]
            dkeys, dlater = self._with_later(dkeys, dlater)
            arrays = [z.write(i, x) for z, x in zip(arrays, (dx, *dkeys))]
            return sums, dsums, dtrained, dgain, dlater, *arrays

        nothing = self.sums.nothing
        shape = size(key, 0), 2 * chunks.lead, key.shape[2]
        dtype = self.heads.dtype
        later = [tf.zeros((*shape, size(x, 3)), dtype) for x in (key, value)]
        start = nothing, nothing, each(tf.zeros_like, kernel.trained)
        start = *start, tf.zeros((query.shape[2], 1), dtype), later
        arrays = [blocks.array(dtype) for _ in range(3)]
        _, _, dtrained, dgain, later, dquery, *dkeys = blocks.loop(
            step, (*start, *arrays), reverse=True
        )
        dkeys = [self._of_keys(*z) for z in zip(dkeys, later, (key, value))]
        return blocks.join_like(dquery, query), *dkeys, dgain, *dtrained

    def _loop(self, step, start, reverse=False):
        return self.blocks.loop(step, start, reverse)

    # -- Pairs of queries and keys.

    def _far_weights(self, k, p, e):
        """Weights of far keys k chunks after queries, `(chunks * X, rows, tokens)`."""
        p = each(lambda x: self.chunks.queries_at(x, k), p)
        e = each(lambda x: self.chunks.keys_at(x, k), e)
        return self._where_far(k, self.kernel.pair_weights(p, e))

    def _where_far(self, k, x):
        return tf.where(self.far[k], x, tf.zeros_like(x))

    def _pair_gradients(self, k, p, e, v, d):
        """Gradients of features, and of values with their ones."""
        chunks = self.chunks
        found = self._far_weights(k, p, e)
        p, d = each(lambda x: chunks.queries_at(x, k), p), chunks.queries_at(d, k)
        e, v = each(lambda x: chunks.keys_at(x, k), e), chunks.keys_at(v, k)
        dfound = self._where_far(k, tf.matmul(d, v, transpose_b=True))
        return (
            each(lambda x: chunks.to_queries(x, k), per_feature(dfound, e)),
            each(lambda x: chunks.to_keys(x, k), over_rows(dfound, p)),
            chunks.to_keys(tf.matmul(found, d, transpose_a=True), k),
        )

    def _band(self, i, x, y, v):
        """Arguments of `weights` for near keys."""
        seen = self.chunks.read_marks(self.rows.seen, i, self.chunks.reach)
        y, v = self.chunks.reached(y), self.chunks.reached(v)
        y = tf.concat([y, weights.hidden_unless(seen, y.dtype)], -1)
        y, v = self.chunks.spans(y), self.chunks.spans(v)
        return with_ones(x * self.scale), y, v, self.band

    # -- Gradients of keys: a block adds to chunks around it.

    def _with_later(self, dkeys, later):
        """Gradients that are complete now, and those that the block before adds to."""
        lead, tokens = self.chunks.lead, self.blocks.tokens
        if not lead:
            return dkeys, later
        dkeys = [
            tf.concat([x[:, :tokens], slice_of(x, tokens, 2 * lead) + y], 1)
            for x, y in zip(dkeys, later)
        ]
        passed = [slice_of(x, 0, 2 * lead) for x in dkeys]
        return [slice_of(x, 2 * lead, tokens) for x in dkeys], passed

    def _of_keys(self, array, first, like):
        """The gradient of keys or values; `first` is what no block completed."""
        x = self.blocks.join_like(array, like)
        if not self.chunks.lead:
            return x
        first = tf.cast(first[:, self.chunks.lead :], x.dtype)
        x = tf.concat([first, x], 1)[:, : size(like, 1)]
        return tf.ensure_shape(x, like.shape)
