"""The loops of attention with an exact window to both sides, near and far keys at once.

Queries and keys stand in chunks. In the chunks that a query's window reaches it sees key
by key: near ones by their exact weights, others by estimated ones. Of chunks beyond it
sees the sums of their features. A loop goes over blocks of chunks; sums over what lies
before a block come from a loop of its own, those over what lies after it from the main
loop, which begins at the end.

The features of all keys have one stabilizer. Where what is far is so much smaller than
what is near that it is lost under it, `forward` says so.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.heads import Heads, block_of, blocks_of
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
    split,
    sum_of_products,
)
from keras_performer.ops.local.loops import CHUNK_SIZE, HIDDEN, MAX_REACH
from keras_performer.ops.normalizer import joined, with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import ceil_div, pad, repeat, size, sizes
from keras_performer.ops.visibility import mask_or_all


class TwoSided:
    """The loops forward and backward; they share sizes, and who sees whom.

    In the loops X is batch size times key-value heads, and the first axis of rows is
    chunks times X, the chunks varying slowest:

        x, a, p    queries, projected queries, their features
        y, b, e    keys, projected keys, their features
        v          values with a column of ones
        r          the stabilizer, parts `(X, 1, M / num_parts)`
        sums       parts `(X, V + 1, M / num_parts)`
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
        self.kernel, self.window = kernel, window
        self.heads = Heads(query, key, value)
        self.scale = query.shape[3] ** -0.5
        length = size(query, 1)
        chunk = chunk_size or max(CHUNK_SIZE, ceil_div(window - 1, MAX_REACH))
        if isinstance(length, int):
            chunk = max(min(chunk, length), 1)
        # tokens of a chunk, and how many chunks the window reaches to one side
        self.chunk, self.reach = chunk, ceil_div(window - 1, chunk)
        if isinstance(length, int):
            self.reach = min(self.reach, ceil_div(max(length, 1), chunk) - 1)
        self.num_features = kernel.num_features(key.shape[3])
        budget = tokens_per_block(query, self.num_features)
        chunks = max(budget // chunk, 2 * self.reach, 1)
        self.blocks = blocks = Blocks(length, chunks * chunk, multiple=chunk)
        # chunks of a block, and how many further ones are read to each side of it
        self.chunks = blocks.tokens // chunk
        self.around = self.reach if blocks.many else 0
        self.lead = self.around * chunk
        static = isinstance(blocks.tokens, int) and isinstance(blocks.count, int)
        self.beyond = not static or blocks.count * self.chunks > self.reach + 1

        group = self.heads.group
        self.rows = size(query, 0) * self.heads.num_key_value_heads
        self.gain = repeat(tf.reshape(gain, (-1, 1, group)), chunk, 1)
        self.gain = tf.reshape(self.gain, (-1, chunk * group, 1))
        self.hides = mask is not None or blocks.padded or blocks.many
        mask = mask_or_all(mask, key)
        first = self.reach * chunk
        ends = first, first + blocks.count * blocks.tokens - length
        self.seen = pad(mask, [[0, 0], ends])
        self.sees_far = pad(_sees_far(mask, window), [[0, 0], ends])

        token = repeat(tf.range(chunk), group, 0)[:, tf.newaxis]
        distance = token - (tf.range(chunk * (2 * self.reach + 1)) - first)
        near = tf.abs(distance) < window
        self.band = _logs(near, self.heads.dtype)
        # by the offsets of chunks in which not all keys are near
        least = max(ceil_div(window + 1, chunk) - 1, 0)
        far = tf.split(tf.logical_not(near), 2 * self.reach + 1, 1)
        far = dict(zip(range(-self.reach, self.reach + 1), far))
        self.far = {k: x for k, x in far.items() if abs(k) >= least}

    def forward(self, query, key, value):
        """The output, log-sums, and what `backward` needs.

        Returns:
            `(output, log_sums, lost, saved)`: tensors `(B, T, N, V)`, `(B, T, N, 1)`;
            a bool scalar, whether far weights were lost; and a nest of tensors.
        """
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        queries, keys, values = map(blocks.cut, (query, key, value))
        r, kept = self._before_keys(keys, values)
        before = self._before(r, kept)
        r_queries, r_keys = self._tiled(r, 0), self._tiled(r, self.around)

        def step(i, sums, lost, *arrays):
            x, (y, v, mask) = self._rows(block_of(queries, i)), self._keys(keys, values, i)
            p, peak = kernel.query_features(kernel.project_queries(x), r_queries)
            e = kernel.key_features(kernel.project_keys(y, mask), r_keys, mask)
            found, sums = self._beyond(i, over_rows(v, e), before, sums)
            weighted = [] if found is None else [over_features(p, found)]
            for k in self.far:
                weights = self._far_weights(k, p, e)
                part = tf.matmul(weights, self._keys_at(v, k))
                weighted.append(self._placed(part, k))
            weighted = tf.add_n(weighted)
            normalizer = kernel.normalizer(peak, weighted[..., -1:])
            log = kernel.log_normalizer(normalizer)
            if kernel.max_rise is not None:
                small = log - peak < -kernel.max_rise
                some = tf.logical_and(small, self._sees(i, 0))
                lost = tf.logical_or(lost, tf.reduce_any(some))
            far = tf.math.divide_no_nan(weighted[..., :-1], weighted[..., -1:])
            log = self._add_gain(log + kernel.log_left_out(x))
            found = joined([self._near(i, x, y, v), (far, log)])
            arrays = [z.write(i, self._block(x)) for z, x in zip(arrays, found)]
            return sums, lost, *arrays

        shapes = [blocks.block_shape(query, n) for n in (size(value, 3), 1)]
        arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
        start = self._no_sums(value), tf.constant(False)
        _, lost, *arrays = self._loop(step, (*start, *arrays), reverse=True)
        shapes = [(*query.shape[:3], n) for n in (value.shape[3], 1)]
        return *map(blocks.join, arrays, shapes), lost, (r, kept)

    def backward(self, query, key, value, output, log_sums, saved, doutput):
        """Gradients of query, key, value, gain, and of what of the kernel trains."""
        heads, kernel, blocks = self.heads, self.kernel, self.blocks
        r, kept = saved
        queries = [blocks.cut(x) for x in (query, output, log_sums, doutput)]
        keys, values = blocks.cut(key), blocks.cut(value)
        r_around = self._tiled(r, self.around)
        before = self._before(r, kept)
        dbefore = self._before(None, self._before_queries(queries, value, r))

        def step(i, sums, dsums, dtrained, dgain, dlater, *arrays):
            x, log, d, a, p, d_far = self._queries(queries, r_around, i, self.around)
            dfound, dsums = self._beyond(i, over_rows(d_far, p), dbefore, dsums)
            x, log, d, a, d_far = map(self._inner, (x, log, d, a, d_far))
            p = each(self._inner, p)
            y, v, mask = self._keys(keys, values, i)
            b = kernel.project_keys(y, mask)
            e = kernel.key_features(b, r_around, mask)
            found, sums = self._beyond(i, over_rows(v, e), before, sums)
            dp, de, dv = [], [], []
            if found is not None:
                dp.append(per_feature(d_far, found))
                de.append(each(self._outer, per_feature(self._inner(v), dfound)))
                dv.append(self._outer(over_features(each(self._inner, e), dfound)))
            for k in self.far:
                found = self._pair_gradients(k, p, e, v, d_far)
                for parts, part in zip((dp, de, dv), found):
                    parts.append(part)
            dp, de = (each(lambda *x: tf.add_n(x), *z) for z in (dp, de))
            dv = tf.add_n(dv)
            dx, from_queries = kernel.pull_queries(x, kernel.query_gradient(a, p, dp))
            db = kernel.key_gradient(b, e, de, mask)
            dy, from_keys = kernel.pull_keys(y, mask, db, v, dv)
            dtrained = each(lambda *x: tf.add_n(x), dtrained, from_queries, from_keys)
            dx_near, dy_near, dv_near = self._near_gradients(i, x, y, v, d, log)
            left = sum_of_products(p, dp)
            dx += dx_near + kernel.pull_left_out(x, left)
            dgain += tf.reduce_sum(self._block(left), (0, 1))
            dkeys = [self._block(z) for z in (dy + dy_near, dv[..., :-1] + dv_near)]
            dkeys, dlater = self._with_later(dkeys, dlater)
            arrays = [z.write(i, x) for z, x in zip(arrays, (self._block(dx), *dkeys))]
            return sums, dsums, dtrained, dgain, dlater, *arrays

        nothing = self._no_sums(value)
        shape = size(key, 0), 2 * self.lead, key.shape[2]
        later = [tf.zeros((*shape, size(x, 3)), heads.dtype) for x in (key, value)]
        start = nothing, nothing, each(tf.zeros_like, kernel.trained)
        start = *start, tf.zeros((query.shape[2], 1), heads.dtype), later
        arrays = [blocks.array(heads.dtype) for _ in range(3)]
        _, _, dtrained, dgain, later, dquery, *dkeys = blocks.loop(
            step, (*start, *arrays), reverse=True
        )
        dkeys = [self._of_keys(*z) for z in zip(dkeys, later, (key, value))]
        return blocks.join_like(dquery, query), *dkeys, dgain, *dtrained

    def _loop(self, step, start, reverse=False):
        # features of a user may have tapes of their own
        has_tapes = self.kernel.max_rise is None
        return self.blocks.loop(step, start, reverse, has_tapes)

    # -- Sums over what no window of a block reaches.

    def _before_keys(self, keys, values):
        """The stabilizer of all keys, and what `_before` takes."""
        kernel, blocks, nothing = self.kernel, self.blocks, self._no_sums(values)
        shape = self.rows, 1, nothing[0].shape[2]
        empty = tf.fill(shape, tf.constant(EMPTY, self.heads.dtype))
        r = each(lambda _: empty, nothing)
        if not blocks.many:
            y, _, mask = self._keys(keys, values, 0)
            return self._running_max(r, kernel.project_keys(y, mask)), ()

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
        return r, tuple(x.stack() for x in kept)

    def _before_queries(self, queries, value, r):
        """What `_before` takes, of sums over queries."""
        if not (self.blocks.many and self.beyond):
            return ()
        nothing, r_queries = self._no_sums(value), self._tiled(r, 0)

        def step(i, sums, last, *kept):
            kept = [z.write(i, x) for z, x in zip(kept, sums)]
            *_, p, d = self._queries(queries, r_queries, i, 0)
            return *self._passed(sums, last, over_rows(d, p)), *kept

        arrays = [self.blocks.array(x.dtype, sizes(x)) for x in nothing]
        _, _, *kept = self._loop(step, (nothing, nothing, *arrays))
        return tuple(x.stack() for x in kept)

    def _passed(self, sums, last, added):
        """The sums before the next block, and those over this one's last chunks."""
        cut = (self.chunks - self.reach) * self.rows
        early, late = (each(self._total, each(*z)) for z in (
            (lambda x: x[:cut], added), (lambda x: x[cut:], added)
        ))
        return each(lambda *x: tf.add_n(x), sums, last, early), late

    def _before(self, r, kept):
        """What gives the sums before block i, parts, under the stabilizer r."""
        parts = self.kernel.num_parts

        def before(i):
            found = tuple(x[i] for x in kept)
            if r is None:
                return found
            factor = self.kernel.rescale(found[:parts], r)
            return each(tf.multiply, found[parts:], factor)

        return before if kept else None

    def _beyond(self, i, added, before, later):
        """For each chunk of a block the sums over chunks that it does not reach.

        Args:
            i: the block.
            added: sums over the chunks of the block and around it, parts.
            before: function of i, or `None`.
            later: sums after the block and what is around it.

        Returns:
            `(sums, later)`: parts `(chunks * X, V + 1, M / num_parts)`, or `None` if
            there are no such chunks; and what is later than the block before.
        """
        if not self.beyond:
            return None, later
        own = tf.range(self.chunks)[:, tf.newaxis]
        distance = own - (tf.range(self.chunks + 2 * self.around) - self.around)
        counts = tf.cast(tf.abs(distance) > self.reach, self.heads.dtype)
        outer = None if before is None else each(tf.add, before(i), later)

        def of_each(x, outer=None):
            shape = size(later[0], 1), size(later[0], 2)
            flat = tf.reshape(x, (size(counts, 1), self.rows * shape[0] * shape[1]))
            found = tf.matmul(counts, flat)
            if outer is not None:
                found += tf.reshape(outer, (1, -1))
            return tf.reshape(found, (self.chunks * self.rows, *shape))

        if outer is None:
            return each(of_each, added), later
        passed = each(lambda x: self._total(x[2 * self.around * self.rows :]), added)
        return each(of_each, added, outer), each(tf.add, later, passed)

    def _total(self, x):
        """The sum over chunks."""
        shape = size(x, 1), size(x, 2)
        return tf.reduce_sum(tf.reshape(x, (-1, self.rows, *shape)), 0)

    def _no_sums(self, value):
        shape = self.rows, size(value, len(value.shape) - 1) + 1, self.num_features
        return split(tf.zeros(shape, self.heads.dtype), self.kernel.num_parts)

    def _running_max(self, r, b):
        def largest(x):
            x = tf.reshape(tf.reduce_max(x, 1), (-1, self.rows, x.shape[2]))
            return tf.transpose(x, (1, 0, 2))

        return each(tf.stop_gradient, self.kernel.running_max(r, each(largest, b)))

    def _tiled(self, r, around):
        """The stabilizer for each chunk."""
        times = self.chunks + 2 * around, 1, 1
        return each(lambda x: tf.tile(x, times), r)

    # -- Far keys in chunks that are reached.

    def _far_weights(self, k, p, e):
        p, e = each(lambda x: self._at(x, k), p), each(lambda x: self._keys_at(x, k), e)
        return self._where_far(k, over_features(p, e))

    def _where_far(self, k, x):
        return tf.where(self.far[k], x, tf.zeros_like(x))

    def _pair_gradients(self, k, p, e, v, d):
        """Those of features, and of values with their ones."""
        weights = self._far_weights(k, p, e)
        p, d = each(lambda x: self._at(x, k), p), self._at(d, k)
        e, v = each(lambda x: self._keys_at(x, k), e), self._keys_at(v, k)
        dweights = self._where_far(k, tf.matmul(d, v, transpose_b=True))
        return (
            each(lambda x: self._placed(x, k), per_feature(dweights, e)),
            each(lambda x: self._outer(x, k), over_rows(dweights, p)),
            self._outer(tf.matmul(weights, d, transpose_a=True), k),
        )

    # -- Near keys.

    def _near(self, i, x, y, v):
        """Output and log-sums."""
        x, y = self._with_hidden(i, x * self.scale, y)
        logits = tf.matmul(x, y, transpose_b=True) + self.band
        # a row that sees nothing has weights of 0, too
        peak = tf.reduce_max(logits, -1, keepdims=True)
        peak = tf.maximum(peak, tf.constant(EMPTY, peak.dtype))
        sums = tf.matmul(tf.exp(logits - peak), self._spans(v))
        found = sums[..., -1:] > 0
        total = tf.where(found, sums[..., -1:], tf.ones_like(peak))
        return sums[..., :-1] / total, peak + tf.math.log(total)

    def _near_gradients(self, i, x, y, v, d, log):
        """Those of queries, keys and values."""
        x, y = self._with_hidden(i, x * self.scale, y)
        # the product subtracts it: one pass over the weights less
        x, y = tf.concat([x, -log], -1), with_ones(y)
        p = tf.exp(tf.matmul(x, y, transpose_b=True) + self.band)
        dlogits = p * tf.matmul(d, self._spans(v), transpose_b=True)
        dx = tf.matmul(dlogits, y[..., :-2])
        dy = tf.matmul(dlogits, x[..., :-2], transpose_a=True)
        dv = tf.matmul(p, d[..., :-1], transpose_a=True)
        dy, dv = map(self._overlapped, (dy, dv))
        return dx * self.scale, dy, dv

    def _with_hidden(self, i, x, y):
        """Queries with a column of ones, keys of spans with what hides them."""
        hidden = _logs(self._marks(self.seen, i, self.reach), y.dtype)
        y = tf.concat([self._padded(y), hidden], -1)
        return with_ones(x), self._spans(y, padded=True)

    def _padded(self, y):
        ends = [(self.reach - self.around) * self.rows] * 2
        return tf.pad(y, [ends, [0, 0], [0, 0]]) if ends[0] else y

    def _spans(self, x, padded=False):
        """Keys of what each chunk's window reaches, `(chunks * X, span, dim)`."""
        x = x if padded else self._padded(x)
        parts = [self._cut(x, k, self.chunks) for k in range(2 * self.reach + 1)]
        return tf.concat(parts, 1) if len(parts) > 1 else parts[0]

    def _overlapped(self, x):
        """The sum over spans of what is said of their keys."""
        parts = tf.split(x, 2 * self.reach + 1, 1)
        places = range(-self.reach, self.reach + 1)
        return tf.add_n([self._outer(self._at(x, k), k) for k, x in zip(places, parts)])

    # -- Chunks of queries, and those k chunks later of keys.

    def _cut(self, x, first, count):
        shape = size(x, 1), size(x, 2)
        return tf.slice(x, (first * self.rows, 0, 0), (count * self.rows, *shape))

    def _skipped(self, k):
        """How many chunks of queries have none of keys, at the start and the end."""
        return max(-k - self.around, 0), max(k - self.around, 0)

    def _at(self, x, k):
        """Chunks of queries that have one of keys."""
        first, last = self._skipped(k)
        return self._cut(x, first, self.chunks - first - last) if first or last else x

    def _keys_at(self, x, k):
        first, last = self._skipped(k)
        return self._cut(x, first + k + self.around, self.chunks - first - last)

    def _placed(self, x, k):
        """The inverse of `_at`, zeros elsewhere."""
        first, last = self._skipped(k)
        ends = first * self.rows, last * self.rows
        return tf.pad(x, [ends, [0, 0], [0, 0]]) if first or last else x

    def _outer(self, x, k=0):
        """The inverse of `_keys_at`, zeros elsewhere."""
        first, last = self._skipped(k)
        ends = (first + k + self.around), (last - k + self.around)
        if ends == (0, 0):
            return x
        return tf.pad(x, [[n * self.rows for n in ends], [0, 0], [0, 0]])

    def _inner(self, x):
        return self._keys_at(x, 0) if self.around else x

    # -- Rows.

    def _queries(self, queries, r, i, around):
        """Queries, their log-sums and gradients; and for far keys projections,
        features whose weights are shares of all, and gradients.
        """
        kernel = self.kernel
        x, output, log, doutput = (
            self._rows(self._reached(z, i, around)) for z in queries
        )
        d = with_normalizer_gradient(doutput, output)
        far = self._add_gain(log - kernel.log_left_out(x), -1)
        # of a query without far keys: no features, whatever all weights are
        far = tf.where(self._sees(i, around), far, tf.constant(EMPTY, far.dtype))
        normalizer = kernel.normalizer_of(far)
        a = kernel.project_queries(x)
        p = kernel.normalized_query_features(a, r, normalizer)
        return x, log, d, a, p, kernel.divided(d, normalizer)

    def _keys(self, keys, values, i, around=None):
        """Keys, values with their ones, and the mask or `None`."""
        around = self.around if around is None else around
        y, v = (self._rows(self._reached(z, i, around)) for z in (keys, values))
        mask = self._marks(self.seen, i, around) if self.hides else None
        return y, with_ones(v), mask

    def _reached(self, blocks, i, around):
        """Block i and so many chunks around it."""
        if not around:
            return block_of(blocks, i)
        tokens, lead = self.blocks.tokens, around * self.chunk
        static = isinstance(tokens, int)
        reached = ceil_div(lead, tokens) if static else around
        last = self.blocks.count - 1
        places = tf.clip_by_value(i + tf.range(-reached, reached + 1), 0, last)
        x = blocks_of(blocks, places)
        return _slice(x, reached * tokens - lead, tokens + 2 * lead)

    def _marks(self, x, i, around):
        """What is said of tokens, `(B, all)`, as rows of keys."""
        first = i * self.blocks.tokens + (self.reach - around) * self.chunk
        x = _slice(x, first, self.blocks.tokens + 2 * around * self.chunk)
        x = tf.transpose(tf.reshape(x, (size(x, 0), -1, self.chunk)), (1, 0, 2))
        x = repeat(x, self.heads.num_key_value_heads, 1)
        return tf.reshape(x, (-1, self.chunk, 1))

    def _sees(self, i, around):
        """Which queries have a visible far key."""
        return repeat(self._marks(self.sees_far, i, around), self.heads.group, 1)

    def _rows(self, x):
        """`(B, tokens, heads, dim)` to `(chunks * X, rows, dim)`."""
        x = x if x.dtype == tf.bool else tf.cast(x, self.heads.dtype)
        heads, dim = self.heads.num_key_value_heads, size(x, 3)
        group = x.shape[2] // heads
        x = tf.reshape(x, (size(x, 0), -1, self.chunk, heads, group * dim))
        x = tf.transpose(x, (1, 0, 3, 2, 4))
        return tf.reshape(x, (-1, self.chunk * group, dim))

    def _block(self, x):
        """The inverse of `_rows`."""
        heads, dim = self.heads.num_key_value_heads, size(x, 2)
        group = size(x, 1) // self.chunk
        batch = self.rows // heads
        x = tf.reshape(x, (-1, batch, heads, self.chunk, group * dim))
        x = tf.transpose(x, (1, 0, 3, 2, 4))
        return tf.reshape(x, (batch, -1, heads * group, dim))

    def _add_gain(self, log, sign=1):
        shape = -1, self.heads.num_key_value_heads, size(log, 1), 1
        found = tf.reshape(log, shape) + sign * self.gain
        return tf.reshape(found, tf.shape(log))

    # -- Gradients of keys: a block adds to those around it.

    def _with_later(self, dkeys, later):
        """What is complete, and what the block before adds to."""
        if not self.lead:
            return dkeys, later
        tokens, lead = self.blocks.tokens, 2 * self.lead
        dkeys = [
            tf.concat([x[:, :tokens], _slice(x, tokens, lead) + y], 1)
            for x, y in zip(dkeys, later)
        ]
        passed = [tf.ensure_shape(x[:, :lead], y.shape) for x, y in zip(dkeys, later)]
        return [_slice(x, lead, tokens) for x in dkeys], passed

    def _of_keys(self, array, first, like):
        """The gradient of keys or values."""
        if not self.lead:
            return self.blocks.join_like(array, like)
        x = self.blocks.join_like(array, like)
        x = tf.concat([tf.cast(first[:, self.lead :], x.dtype), x], 1)
        return tf.ensure_shape(x[:, : size(like, 1)], like.shape)


def _sees_far(mask, window):
    """Which queries have a visible key at the distance of the window, or beyond it."""
    length = size(mask, 1)
    places = tf.range(length)
    first = tf.reduce_min(tf.where(mask, places, length), 1, keepdims=True)
    last = tf.reduce_max(tf.where(mask, places, -1), 1, keepdims=True)
    return tf.logical_or(places - window >= first, places + window <= last)


def _logs(visible, dtype):
    """0 where a key is visible, else HIDDEN."""
    return tf.where(visible, tf.constant(0.0, dtype), tf.constant(HIDDEN, dtype))


def _slice(x, start, length):
    """`x[:, start : start + length]` of a known length also where the start is not."""
    rest = [size(x, axis) for axis in range(2, len(x.shape))]
    return tf.slice(x, [0, start, *[0] * len(rest)], [size(x, 0), length, *rest])
