"""The loops of causal attention: blocks of chunks, forward and backward.

A loop over blocks carries the state; inside a block the few chunks are computed side by
side, from the running sums of their features.
"""

import functools

import tensorflow as tf

from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.parts import (
    each,
    join,
    over_features,
    over_rows,
    per_feature,
    split,
)
from keras_performer.ops.linear import causal_stable, causal_tokens
from keras_performer.ops.linear.prefix_sums import prefix_sums
from keras_performer.ops.normalizer import (
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.shapes import size

# Tokens of a chunk: the products inside a chunk cost chunk_size * (M + V) a token, the
# chunk states V * M / chunk_size. 64 measured fastest on CPUs for M = 256, V = 64.
DEFAULT_CHUNK_SIZE = 64
MAX_CHUNKS_PER_BLOCK = 8


def forward_pass(kernel, visible, chunk_size, query, key, value, r, sums):
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    return loops.forward(query, key, value, r, sums)


def backward_pass(kernel, visible, chunk_size, query, key, value, *saved):
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    return loops.backward(query, key, value, *saved)


class Causal:
    """The forward and the backward loop; they share sizes, blocks and what is visible.

    In the loops, with the shapes of `Kernel`:

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
            mask = self.visible.rows(i)
            b = kernel.project_keys(heads.key_rows(keys, i), mask)
            a = kernel.project_queries(heads.query_rows(queries, i))
            v = with_ones(heads.key_rows(values, i))
            reference = kernel.reference(r, b, mask)
            r_new = kernel.running_max(reference, b)
            output, normalizer, sums = self._choose(
                each(tf.subtract, r_new, reference),
                lambda: self._forward_block(a, b, v, mask, r, sums, reference, r_new),
                lambda: self._safe_forward(a, b, v, mask, r, sums, reference, r_new),
            )
            output = heads.query_block(output)
            return (
                r_new,
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
            normalizer = normalizers[i]
            mask = self.visible.rows(i)
            x, y = heads.query_rows(queries, i), heads.key_rows(keys, i)
            b = kernel.project_keys(y, mask)
            a = kernel.project_queries(x)
            v = with_ones(heads.key_rows(values, i))
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i),
                heads.query_rows(outputs, i),
                None if dlogs is None else heads.query_rows(dlogs, i),
            )
            reference = kernel.reference(r, b, mask)
            da, db, dv, dsums = self._choose(
                each(tf.subtract, r_new, reference),
                lambda: self._backward_block(
                    a, b, v, d, mask, normalizer, r, sums, reference, r_new, dsums
                ),
                lambda: self._safe_backward(
                    a, b, v, d, mask, normalizer, r, sums, dsums
                ),
            )
            dx, from_queries = kernel.pull_queries(x, da)
            dy, from_keys = kernel.pull_keys(y, mask, db, v, dv)
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

    def _choose(self, rise, fast, safe):
        """The safe form where a later key of the block dwarfs the reference."""
        if self.kernel.max_rise is None:
            return fast()
        return tf.cond(tf.reduce_max(join(rise)) < self.kernel.max_rise, fast, safe)

    def _forward_block(self, a, b, v, mask, r, sums, reference, r_new):
        kernel = self.kernel
        query_features, peak = kernel.query_features(a, reference)
        p = each(self._to_chunks, query_features)
        e = each(self._to_chunks, kernel.key_features(b, reference, mask))
        v = self._to_chunks(v)
        start = each(tf.multiply, sums, kernel.rescale(r, reference))
        before, after = prefix_sums(over_rows(v, e), start)
        visible = self.visible.pairs(size(v, 2))
        weights = over_features(p, e)
        weights = tf.where(visible, weights, tf.zeros_like(weights))
        output = _from_chunks(tf.matmul(weights, v) + over_features(p, before))
        normalizer = kernel.normalizer(peak, output[..., -1:])
        after = each(tf.multiply, after, kernel.rescale(reference, r_new))
        return normalize(output), normalizer, after

    def _safe_forward(self, a, b, v, mask, r, sums, reference, r_new):
        """The form for keys that rise, and others where it is not needed or not right.

        Chunks before the first key that dwarfs the reference come from the fast form,
        so that no bit of theirs depends on that key; those from the first that lost
        weights on, token after token.
        """
        kernel = self.kernel
        chunks = self._in_chunks(a, b, v, mask)
        *found, after, lost = causal_stable.forward(kernel, *chunks, r, sums)
        found = each(_from_chunks, found)

        def token_by_token():
            return self._from_first(
                lost, causal_tokens.forward(kernel, a, b, v, r, sums)[:2], found
            )

        def fast():
            return self._forward_block(a, b, v, mask, r, sums, reference, r_new)[:2]

        found = tf.cond(tf.reduce_any(lost), token_by_token, lambda: found)
        rise = self._to_chunks(join(each(tf.subtract, b, reference)))
        dwarfed = tf.reduce_max(rise, (0, 2, 3)) >= kernel.max_rise
        early = tf.cond(dwarfed[0], lambda: found, fast)
        return *self._from_first(dwarfed, found, early), after

    def _safe_backward(self, a, b, v, d, mask, normalizer, r, sums, dsums):
        kernel = self.kernel
        *chunks, visible = self._in_chunks(a, b, v, mask)
        d_, normalizer_ = self._to_chunks(d), self._to_chunks(normalizer)

        def stable():
            da, db, dv, dstart = causal_stable.backward(
                kernel, *chunks[:3], d_, chunks[3], visible, normalizer_, r, sums, dsums
            )
            return (
                _from_chunks(da),
                each(_from_chunks, db),
                _from_chunks(dv),
                dstart,
            )

        def token_by_token():
            return causal_tokens.backward(
                kernel, a, b, v, d, normalizer, r, sums, dsums
            )

        bounds = causal_stable.bounds(kernel, *chunks[:2], chunks[3], visible)
        lost = causal_stable.lost(kernel, bounds, normalizer_)
        return tf.cond(tf.reduce_any(lost), token_by_token, stable)

    def _from_first(self, flags, later, early):
        """Rows of `later` from the first flagged chunk on, before it those of `early`.

        Args:
            flags: bool `(chunks,)`.
            later, early: tuples of tensors `(X, rows, dim)`.
        """
        late = tf.math.cumsum(tf.cast(flags, tf.int32)) > 0
        late = tf.repeat(late, size(early[0], 1) // self.chunks)[:, tf.newaxis]
        return each(functools.partial(tf.where, late), later, early)

    def _in_chunks(self, a, b, v, mask):
        """Projections, values and masks as `causal_stable` takes them."""
        mask = None if mask is None else self._to_chunks(mask)
        b, v = each(self._to_chunks, b), self._to_chunks(v)
        return self._to_chunks(a), b, v, mask, self.visible.pairs(size(v, 2))

    def _backward_block(
        self, a, b, v, d, mask, normalizer, r, sums, reference, r_new, dsums
    ):
        kernel = self.kernel
        p = kernel.normalized_query_features(a, reference, normalizer)
        d = kernel.divided(d, normalizer)
        e = kernel.key_features(b, reference, mask)
        p_, e_ = each(self._to_chunks, p), each(self._to_chunks, e)
        v, d = self._to_chunks(v), self._to_chunks(d)
        start = each(tf.multiply, sums, kernel.rescale(r, reference))
        before, _ = prefix_sums(over_rows(v, e_), start)
        end = each(tf.multiply, dsums, kernel.rescale(reference, r_new))
        dafter, dbefore = prefix_sums(over_rows(d, p_), end, reverse=True)
        visible = self.visible.pairs(size(v, 2))
        weights = over_features(p_, e_)
        weights = tf.where(visible, weights, tf.zeros_like(weights))
        dweights = tf.matmul(d, v, transpose_b=True)
        dweights = tf.where(visible, dweights, tf.zeros_like(dweights))
        dp = each(tf.add, per_feature(d, before), per_feature(dweights, e_))
        de = each(tf.add, per_feature(v, dafter), over_rows(dweights, p_))
        dv = over_features(e_, dafter) + tf.matmul(weights, d, transpose_a=True)
        return (
            kernel.query_gradient(a, p, each(_from_chunks, dp)),
            kernel.key_gradient(b, e, each(_from_chunks, de), mask),
            _from_chunks(dv),
            each(tf.multiply, dbefore, kernel.rescale(r, reference)),
        )

    def _to_chunks(self, x):
        """`(X, rows, dim)` to chunks `(X, chunks, rows of a chunk, dim)`."""
        rows = size(x, 1) // self.chunks
        return tf.reshape(x, (-1, self.chunks, rows, size(x, 2)))


def _from_chunks(x):
    """The inverse of `_to_chunks`."""
    return tf.reshape(x, (-1, x.shape[1] * size(x, 2), size(x, 3)))
