"""The loops of local attention: blocks of chunks, forward and backward.

Queries stand in chunks, and a chunk sees a few chunks of keys: its own, those before it
that its window reaches, and those after it unless later keys are hidden. A loop over
blocks of chunks computes weights; its gradient computes them again.
"""

import math

import tensorflow as tf

from keras_performer.ops.blocks import Blocks
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import with_normalizer_gradient, with_ones
from keras_performer.ops.shapes import ceil_div, size

# Weights of one block, in all heads: 2 MB in float32, so that they stay in cache.
BLOCK_WEIGHTS = 2**19
# Tokens of a chunk, unless the window is much longer or the sequence is shorter.
CHUNK_SIZE = 64
# The logarithm of the weight of what is not to be seen; exp(HIDDEN - EMPTY) is 0.
HIDDEN = 2 * EMPTY
# The most chunks that the window reaches to one side.
MAX_REACH = 4


def forward_pass(_, options, query, key, value, seen):
    loops = _Local(options, query, key, value)
    return loops.forward(query, Recent(key, value, seen))


def backward_pass(_, options, query, key, value, seen, *ends):
    loops = _Local(options, query, key, value)
    return loops.backward(query, Recent(key, value, seen), *ends)


class _Local:
    """The forward and the backward loop.

    In the loops X is batch size times key-value heads, a chunk of queries has `rows`
    tokens times the query heads that share a key, and its keys are `span` tokens:

        x       queries, `(X, chunks, rows, H)`
        y, v    keys, values and their ones, `(X, chunks, span, ...)`
        p       weights that sum to 1, `(X, chunks, rows, span)`
        d...    a gradient
    """

    def __init__(self, options, query, key, value):
        reach, self.before, self.window, self.causal, numbers = options
        self.heads = Heads(query, key, value)
        self.scale = query.shape[3] ** -0.5
        length = query.shape[1]
        self.chunk = max(CHUNK_SIZE, ceil_div(reach, MAX_REACH))
        # a short sequence is one chunk, whose span is what is given and no more
        self.single = length is not None and length <= self.chunk
        if self.single:
            self.chunk, self.lead = max(length, 1), reach
        else:
            self.lead = ceil_div(reach, self.chunk) * self.chunk
        self.trail = 0 if self.causal else self.lead
        self.span = self.lead + self.chunk + self.trail
        examples = (query.shape[0] or 1) * query.shape[2]
        weights = examples * self.chunk * self.span
        # a power of two: most lengths are whole blocks then, and need no padding
        chunks = 2 ** int(math.log2(max(BLOCK_WEIGHTS // weights, 1)))
        self.blocks = Blocks(size(query, 1), chunks * self.chunk, multiple=self.chunk)
        self.band = self._band()
        self.query_numbers = self.key_numbers = None
        if numbers is not None:
            self.query_numbers = self.blocks.cut(numbers[:, self.before :])
            self.key_numbers = tf.pad(numbers, self._ends(size(numbers, 1)))

    def forward(self, query, keys):
        heads, blocks = self.heads, self.blocks
        queries, keys = blocks.cut(query), self._padded(keys)

        def step(i, outputs, log_sums):
            x, y, v = self._block(queries, keys, i)
            logits = tf.matmul(x, y, transpose_b=True) + self._hidden(i)
            # a row that sees nothing has weights of 0, too
            peak = tf.reduce_max(logits, -1, keepdims=True)
            peak = tf.maximum(peak, tf.constant(EMPTY, peak.dtype))
            sums = self._from_chunks(tf.matmul(tf.exp(logits - peak), v))
            found = sums[..., -1:] > 0
            total = tf.where(found, sums[..., -1:], tf.ones_like(peak[:, 0, :1, :1]))
            log = self._from_chunks(peak) + tf.math.log(total)
            return (
                outputs.write(i, heads.query_block(sums[..., :-1] / total)),
                log_sums.write(i, heads.query_block(log)),
            )

        arrays = [blocks.array(heads.dtype) for _ in range(2)]
        outputs, log_sums = blocks.loop(step, arrays)
        shape = query.shape[:3]
        return (
            blocks.join(outputs, (*shape, keys.value.shape[3])),
            blocks.join(log_sums, (*shape, 1)),
        )

    def backward(self, query, keys, output, log_sums, doutput, dlog_sums):
        """Gradients of query, key and value, and the row sums of those of logits.

        Output and log-sums may be those of attention to further keys, too. The weights
        here then are near keys' shares of all weights.
        """
        heads, blocks = self.heads, self.blocks
        queries, outputs, logs, doutputs = map(
            blocks.cut, (query, output, log_sums, doutput)
        )
        dlogs = None if dlog_sums is None else blocks.cut(dlog_sums)
        given, keys = keys, self._padded(keys)

        def step(i, dqueries, totals, dkeys, dvalues, *tails):
            x, y, v = self._block(queries, keys, i)
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i),
                heads.query_rows(outputs, i),
                None if dlogs is None else heads.query_rows(dlogs, i),
            )
            d = self._to_chunks(d)
            log = self._to_chunks(heads.query_rows(logs, i))
            # the product subtracts it: one pass over the weights less
            x, y = tf.concat([x, -log], -1), with_ones(y)
            p = tf.exp(tf.matmul(x, y, transpose_b=True) + self._hidden(i))
            dlogits = p * tf.matmul(d, v, transpose_b=True)
            # the ones of the keys add up the rows
            dx = self._from_chunks(tf.matmul(dlogits, y))
            dx, total = dx[..., :-2] * self.scale, dx[..., -1:]
            pairs = (dlogits, x[..., :-2], tails[0]), (p, d[..., :-1], tails[1])
            dkey, dvalue = (
                self._overlapped(tf.matmul(a, b, transpose_a=True), tail)
                for a, b, tail in pairs
            )
            own = blocks.tokens
            ends = zip((dkey, dvalue), tails)
            return (
                dqueries.write(i, heads.query_block(dx)),
                totals.write(i, heads.query_block(total)),
                dkeys.write(i, heads.key_block(dkey[:, :own])),
                dvalues.write(i, heads.key_block(dvalue[:, :own])),
                *(tf.ensure_shape(x[:, own:], t.shape) for x, t in ends),
            )

        arrays = [blocks.array(heads.dtype) for _ in range(4)]
        rows = size(query, 0) * heads.num_key_value_heads
        tails = [
            tf.zeros((rows, self.lead + self.trail, size(z, 3)), heads.dtype)
            for z in (given.key, given.value)
        ]
        dqueries, totals, *arrays, dkey, dvalue = blocks.loop(step, (*arrays, *tails))
        dkey, dvalue = (
            self._unpadded(array, tail, like)
            for array, tail, like in zip(arrays, (dkey, dvalue), given)
        )
        total = blocks.join(totals, (*query.shape[:3], 1))
        return blocks.join_like(dqueries, query), dkey, dvalue, total

    def _padded(self, keys):
        """The keys, and places that nothing sees, as many as whole chunks take."""
        _, ends = self._ends(size(keys.seen, 1))
        return keys.padded(*ends)

    def _ends(self, count):
        """What pads an axis of examples, and one of so many keys."""
        first = self.lead - self.before
        total = self.lead + self.blocks.count * self.blocks.tokens + self.trail
        return [0, 0], [first, total - first - count]

    def _unpadded(self, array, tail, like):
        """The gradient of keys or values from those of the blocks and what is left."""
        shape = size(like, 0), self.blocks.count * self.blocks.tokens
        x = tf.transpose(array.stack(), (1, 0, 2, 3, 4))
        x = tf.reshape(x, (*shape, like.shape[2], size(like, 3)))
        x = tf.concat([x, self.heads.key_block(tail)], 1)
        first = self.lead - self.before
        x = x[:, first : first + size(like, 1)]
        return tf.ensure_shape(tf.cast(x, like.dtype), like.shape)

    def _block(self, queries, keys, i):
        """Queries, keys, and values with ones, in chunks.

        Queries have a column of ones, and keys one of what is added to their logits.
        """
        heads, tokens = self.heads, self.blocks.tokens
        x = with_ones(self._to_chunks(heads.query_rows(queries, i) * self.scale))
        length = self.lead + tokens + self.trail
        key, value, seen = (_slice(z, i * tokens, length) for z in keys)
        y, v = (heads.key_rows(z[:, tf.newaxis], 0) for z in (key, value))
        seen = heads.mask_rows(seen[:, tf.newaxis], 0)
        y = tf.concat([y, _logs(seen, y.dtype)], -1)
        return x, self._spans(y), self._spans(with_ones(v))

    def _band(self):
        """What is added to logits: 0, or HIDDEN for far keys, `(rows, span)`."""
        token = tf.repeat(tf.range(self.chunk), self.heads.group)[:, tf.newaxis]
        distance = token - (tf.range(self.span) - self.lead)
        near = tf.abs(distance) < self.window
        if self.causal:
            near = tf.logical_and(near, distance >= 0)
        return _logs(near, self.heads.dtype)

    def _hidden(self, i):
        """What is added to the logits of block i: HIDDEN for other segments, too."""
        if self.key_numbers is None:
            return self.band
        length = self.lead + self.blocks.tokens + self.trail
        keys = _slice(self.key_numbers, i * self.blocks.tokens, length)
        keys = self._spans(self.heads.mask_rows(keys[:, tf.newaxis], 0))
        queries = self.heads.mask_rows(self.query_numbers, i)
        queries = self._to_chunks(tf.repeat(queries, self.heads.group, axis=1))
        same = queries == tf.transpose(keys, (0, 1, 3, 2))
        return self.band + _logs(same, self.heads.dtype)

    def _spans(self, x):
        """Keys `(X, tokens, dim)` to what each chunk sees, `(X, chunks, span, dim)`."""
        if self.single:
            return x[:, tf.newaxis]
        x = tf.reshape(x, (size(x, 0), -1, self.chunk, size(x, 2)))
        chunks = self.blocks.tokens // self.chunk
        shifts = range(self.span // self.chunk)
        return tf.concat([x[:, shift : shift + chunks] for shift in shifts], 2)

    def _overlapped(self, spans, tail):
        """The sum over chunks of what is said of their keys, `(X, tokens, dim)`.

        Args:
            spans: tensor `(X, chunks, span, dim)`.
            tail: what the block before said of the first tokens.
        """
        if self.single:
            return spans[:, 0]
        parts = tf.split(spans, self.span // self.chunk, 2)
        last = len(parts) - 1
        tail = tf.reshape(tail, (size(tail, 0), last, self.chunk, size(tail, 2)))
        total = tf.pad(tail, [[0, 0], [0, size(spans, 1)], [0, 0], [0, 0]])
        for shift, part in enumerate(parts):
            total += tf.pad(part, [[0, 0], [shift, last - shift], [0, 0], [0, 0]])
        return tf.reshape(total, (size(total, 0), -1, size(total, 3)))

    def _to_chunks(self, x):
        """`(X, rows, dim)` to chunks `(X, chunks, rows of a chunk, dim)`."""
        rows = self.chunk * self.heads.group
        return tf.reshape(x, (size(x, 0), -1, rows, size(x, 2)))

    def _from_chunks(self, x):
        """The inverse of `_to_chunks`."""
        return tf.reshape(x, (size(x, 0), -1, size(x, 3)))


def _slice(x, start, length):
    """`x[:, start : start + length]` of a known length also where the start is not."""
    rest = [size(x, axis) for axis in range(2, len(x.shape))]
    return tf.slice(x, [0, start, *[0] * len(rest)], [size(x, 0), length, *rest])


def _logs(visible, dtype):
    """0 where a key is visible, else HIDDEN."""
    return tf.where(visible, tf.constant(0.0, dtype), tf.constant(HIDDEN, dtype))
