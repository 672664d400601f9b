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
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
    split,
    sum_of_products,
)
from keras_performer.ops.local import weights
from keras_performer.ops.normalizer import (
    joined,
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.shapes import ceil_div, repeat, size, sizes, slice_of
from keras_performer.ops.two_sided.chunks import Chunks
from keras_performer.ops.visibility import mask_or_all


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
        self.num_features = kernel.num_features(key.shape[3])
        sizes_ = self.num_features, window, chunk_size
        self.chunks = chunks = Chunks(query, key, value, *sizes_)
        self.heads, self.blocks = chunks.heads, chunks.blocks
        self.scale = query.shape[3] ** -0.5
        self.around = chunks.around
        self.gain = _of_rows(gain, chunks)
        self.hides = mask is not None or self.blocks.padded or self.blocks.many
        mask = mask_or_all(mask, key)
        self.seen = chunks.marks(mask)
        self.sees_far = chunks.marks(_sees_far(mask, window))

        token = repeat(tf.range(chunks.chunk), self.heads.group, 0)[:, tf.newaxis]
        places = range(-chunks.reach, chunks.reach + 1)
        keys = tf.range(chunks.chunk * len(places)) - chunks.reach * chunks.chunk
        near = tf.abs(token - keys) < window
        self.band = weights.hidden_unless(near, self.heads.dtype)
        far = tf.split(tf.logical_not(near), len(places), 1)
        # without chunks in which all are near
        least = max(ceil_div(window + 1, chunks.chunk) - 1, 0)
        self.far = {k: x for k, x in zip(places, far) if abs(k) >= least}

    def forward(self, query, key, value):
        """The output `(B, T, N, V)`, log-sums `(B, T, N, 1)`, and a bool scalar,
        whether far weights were lost.
        """
        kernel, blocks, chunks = self.kernel, self.blocks, self.chunks
        queries, keys, values = map(blocks.cut, (query, key, value))
        r, before = self._before_keys(keys, values)
        r_queries, r_keys = self._tiled(r, 0), self._tiled(r, self.around)

        def step(i, sums, lost, *arrays):
            x = chunks.rows_of(block_of(queries, i))
            y, v, mask = self._keys(keys, values, i, self.around)
            p, peak = kernel.query_features(kernel.project_queries(x), r_queries)
            e = kernel.key_features(kernel.project_keys(y, mask), r_keys, mask)
            found, sums = self._beyond(i, over_rows(v, e), before, sums)
            weighted = [] if found is None else [over_features(p, found)]
            for k in self.far:
                part = tf.matmul(self._far_weights(k, p, e), chunks.keys_at(v, k))
                weighted.append(chunks.to_queries(part, k))
            weighted = tf.add_n(weighted)
            normalizer = kernel.normalizer(peak, weighted[..., -1:])
            log = kernel.log_normalizer(normalizer)
            if kernel.max_rise is not None:
                small = log - peak < -kernel.max_rise
                some = tf.logical_and(small, self._sees_far(i, 0))
                lost = tf.logical_or(lost, tf.reduce_any(some))
            log = self._add_gain(log + kernel.log_left_out(x))
            near = weights.forward(*self._band(i, x, y, v))
            found = joined([near, (normalize(weighted), log)])
            found = map(chunks.block_of_rows, found)
            return sums, lost, *(z.write(i, x) for z, x in zip(arrays, found))

        shapes = [blocks.block_shape(query, n) for n in (size(value, 3), 1)]
        arrays = [blocks.array(self.heads.dtype, shape) for shape in shapes]
        start = self._no_sums(value), tf.constant(False), *arrays
        _, lost, *arrays = self._loop(step, start, reverse=True)
        shapes = [(*query.shape[:3], n) for n in (value.shape[3], 1)]
        return *map(blocks.join, arrays, shapes), lost

    def backward(self, query, key, value, output, log_sums, doutput):
        """Gradients of query, key, value, gain, and of what of the kernel trains."""
        kernel, blocks, chunks = self.kernel, self.blocks, self.chunks
        queries = [blocks.cut(x) for x in (query, output, log_sums, doutput)]
        keys, values = blocks.cut(key), blocks.cut(value)
        r, before = self._before_keys(keys, values)
        r_around = self._tiled(r, self.around)
        dbefore = self._before_queries(queries, value, r)

        def step(i, sums, dsums, dtrained, dgain, dlater, *arrays):
            x, log, d, a, p, d_far = self._queries(queries, r_around, i, self.around)
            dfound, dsums = self._beyond(i, over_rows(d_far, p), dbefore, dsums)
            x, log, d, a, d_far = map(chunks.within, (x, log, d, a, d_far))
            p = each(chunks.within, p)
            y, v, mask = self._keys(keys, values, i, self.around)
            b = kernel.project_keys(y, mask)
            e = kernel.key_features(b, r_around, mask)
            found, sums = self._beyond(i, over_rows(v, e), before, sums)
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
            dx_near, _, *near = weights.backward(*band, d, log)
            near = map(chunks.of_spans, near)
            left = sum_of_products(p, dp)
            dx += dx_near * self.scale + kernel.pull_left_out(x, left)
            dgain += tf.reduce_sum(chunks.block_of_rows(left), (0, 1))
            dkeys = [x + y for x, y in zip((dy, dv[..., :-1]), near)]
            dx, *dkeys = map(chunks.block_of_rows, (dx, *dkeys))
            dkeys, dlater = self._with_later(dkeys, dlater)
            arrays = [z.write(i, x) for z, x in zip(arrays, (dx, *dkeys))]
            return sums, dsums, dtrained, dgain, dlater, *arrays

        nothing = self._no_sums(value)
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
        # features of a user may have tapes of their own
        return self.blocks.loop(step, start, reverse, self.kernel.max_rise is None)

    # -- Sums over chunks that no window of a block reaches.

    def _before_keys(self, keys, values):
        """The stabilizer of all keys; and what gives the sums before block i, parts,
        `None` if there is but one.
        """
        kernel, blocks, nothing = self.kernel, self.blocks, self._no_sums(values)
        shape = self.chunks.examples, 1, nothing[0].shape[2]
        empty = tf.fill(shape, tf.constant(EMPTY, self.heads.dtype))
        r = each(lambda _: empty, nothing)
        if not blocks.many:
            y, _, mask = self._keys(keys, values, 0, 0)
            return self._running_max(r, kernel.project_keys(y, mask)), None

        def step(i, r, sums, last, *kept):
            kept = [z.write(i, x) for z, x in zip(kept, (*r, *sums))]
            y, v, mask = self._keys(keys, values, i, 0)
            b = kernel.project_keys(y, mask)
            r_new = self._running_max(r, b)
            added = over_rows(v, kernel.key_features(b, self._tiled(r_new, 0), mask))
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

    def _before_queries(self, queries, value, r):
        """What gives the sums over queries before block i, parts, or `None`."""
        if not (self.blocks.many and self.chunks.beyond):
            return None
        nothing, r_queries = self._no_sums(value), self._tiled(r, 0)

        def step(i, sums, last, *kept):
            kept = [z.write(i, x) for z, x in zip(kept, sums)]
            *_, p, d = self._queries(queries, r_queries, i, 0)
            return *self._passed(sums, last, over_rows(d, p)), *kept

        arrays = [self.blocks.array(x.dtype, sizes(x)) for x in nothing]
        _, _, *kept = self._loop(step, (nothing, nothing, *arrays))
        kept = [x.stack() for x in kept]
        return lambda i: tuple(x[i] for x in kept)

    def _passed(self, sums, last, added):
        """The sums before the next block, and those of this one's last chunks."""
        total, reach = self.chunks.total, self.chunks.reach
        early = each(lambda x: total(x, last=reach), added)
        last_ = each(lambda x: total(x, first=self.chunks.chunks - reach), added)
        return each(lambda *x: tf.add_n(x), sums, last, early), last_

    def _beyond(self, i, added, before, later):
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
        passed = each(lambda x: chunks.total(x, first=2 * self.around), added)
        return each(chunks.totals_beyond, added, found), each(tf.add, later, passed)

    def _no_sums(self, value):
        rows = size(value, len(value.shape) - 1) + 1
        shape = self.chunks.examples, rows, self.num_features
        return split(tf.zeros(shape, self.heads.dtype), self.kernel.num_parts)

    def _running_max(self, r, b):
        def largest(x):
            x = tf.reduce_max(x, 1)
            x = tf.reshape(x, (-1, self.chunks.examples, x.shape[1]))
            return tf.transpose(x, (1, 0, 2))

        return each(tf.stop_gradient, self.kernel.running_max(r, each(largest, b)))

    def _tiled(self, r, around):
        return each(lambda x: self.chunks.tiled(x, around), r)

    # -- Pairs of queries and keys.

    def _far_weights(self, k, p, e):
        """Those of far keys, `(chunks * X, rows, tokens)`, k chunks after queries."""
        p = each(lambda x: self.chunks.queries_at(x, k), p)
        e = each(lambda x: self.chunks.keys_at(x, k), e)
        return self._where_far(k, over_features(p, e))

    def _where_far(self, k, x):
        return tf.where(self.far[k], x, tf.zeros_like(x))

    def _pair_gradients(self, k, p, e, v, d):
        """Those of features, and of values with their ones."""
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
        """What `weights` takes of near keys."""
        seen = self.chunks.read_marks(self.seen, i, self.chunks.reach)
        y, v = self.chunks.reached(y), self.chunks.reached(v)
        y = tf.concat([y, weights.hidden_unless(seen, y.dtype)], -1)
        y, v = self.chunks.spans(y), self.chunks.spans(v)
        return with_ones(x * self.scale), y, v, self.band

    # -- Rows.

    def _queries(self, queries, r, i, around):
        """Queries, log-sums of all keys, and d; for far keys projected queries,
        features whose weights are shares of all, and the gradients that go with them.
        """
        kernel = self.kernel
        x, output, log, doutput = (self.chunks.read(z, i, around) for z in queries)
        d = with_normalizer_gradient(doutput, output)
        far = self._add_gain(log - kernel.log_left_out(x), -1)
        # of a query without far keys: no features, whatever all weights are
        seen = self._sees_far(i, around)
        far = tf.where(seen, far, tf.constant(EMPTY, far.dtype))
        normalizer = kernel.normalizer_of(far)
        a = kernel.project_queries(x)
        p = kernel.normalized_query_features(a, r, normalizer)
        return x, log, d, a, p, kernel.divided(d, normalizer)

    def _keys(self, keys, values, i, around):
        """Keys, values with their ones, and the mask or `None`."""
        y, v = (self.chunks.read(z, i, around) for z in (keys, values))
        mask = self.chunks.read_marks(self.seen, i, around) if self.hides else None
        return y, with_ones(v), mask

    def _sees_far(self, i, around):
        rows = self.chunks.read_marks(self.sees_far, i, around)
        return repeat(rows, self.heads.group, 1)

    def _add_gain(self, log, sign=1):
        shape = -1, self.heads.num_key_value_heads, size(log, 1), 1
        return tf.reshape(tf.reshape(log, shape) + sign * self.gain, tf.shape(log))

    # -- Gradients of keys: a block adds to chunks around it.

    def _with_later(self, dkeys, later):
        """What is complete after this block, and what the block before adds to."""
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


def _of_rows(gain, chunks):
    """A number of each query head, `(N, 1)`, for the rows of a chunk of each head."""
    group = chunks.heads.group
    x = repeat(tf.reshape(gain, (-1, 1, group)), chunks.chunk, 1)
    return tf.reshape(x, (-1, chunks.chunk * group, 1))


def _sees_far(mask, window):
    """Which queries have a visible key at the distance of the window, or beyond it."""
    length = size(mask, 1)
    places = tf.range(length)
    first = tf.reduce_min(tf.where(mask, places, length), 1, keepdims=True)
    last = tf.reduce_max(tf.where(mask, places, -1), 1, keepdims=True)
    return tf.logical_or(places - window >= first, places + window <= last)
