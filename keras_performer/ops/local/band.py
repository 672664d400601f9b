"""Exact weights of the keys near a query, chunk by chunk, and their gradients.

    output = softmax(x y^T + band) v

A chunk of queries reads its own tokens as keys, and some keys before and after them:

x       queries with a column of ones, `(X, chunks, rows, H + 1)`
y       keys with a column of addends of their logits, `(X, chunks, span, H + 1)`
v       values with a column of ones, `(X, chunks, span, V + 1)`
band    addends of the logits of pairs, `(rows, span)` or `(X, chunks, rows, span)`
"""

import math

import numpy as np
import tensorflow as tf

from keras_performer.ops.blocks import has_gpu, has_tpu
from keras_performer.ops.decays import between, pull_between, sum_of_rows
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.normalizer import with_ones
from keras_performer.ops.shapes import (
    ceil_div,
    from_chunks,
    positions,
    repeat,
    size,
    slice_of,
    to_chunks,
)

# The addend of hidden logits, far below EMPTY. Logits of up to a tenth of its size stay
# hidden, and the sum of three is still finite in float32.
HIDDEN = -1e38
# Least and most tokens of a chunk for short windows. GPUs and TPUs take MOST: smaller
# products are slow there.
LEAST, MOST = 16, 64
# The most chunks that a window reaches on one side: longer windows get longer chunks.
MAX_REACH = 4


def hidden_unless(visible, dtype):
    """Returns addends of logits: 0 where a key is visible, else HIDDEN."""
    return tf.where(visible, tf.constant(0.0, dtype), tf.constant(HIDDEN, dtype))


def softmax_means(x, y, v, band):
    """Returns means of values and log-sums, `(..., rows, V)` and `(..., rows, 1)`."""
    logits = tf.matmul(x, y, transpose_b=True) + band
    # rows without a visible key get weights of 0, too
    peak = tf.reduce_max(logits, -1, keepdims=True)
    peak = tf.maximum(peak, EMPTY)
    sums = tf.matmul(tf.exp(logits - peak), v)
    sums, total = tf.split(sums, [size(sums, -1) - 1, 1], -1)
    total = tf.where(total > 0, total, 1.0)
    return sums / total, peak + tf.math.log(total)


def softmax_gradients(x, y, v, band, d, log):
    """Returns gradients of queries, keys, values and logits.

    Args:
        x, y, v, band: as in `softmax_means`.
        d: gradient of the sums of each row, times its normalizer.
        log: the log-sums over all keys that a row sees, inside the band or not.

    Returns:
        `(dx, dy, dv, dlogits)`, without gradients of the additional columns.
    """
    # band and log stay outside the product, because GPUs and TPUs round its inputs
    p = tf.exp(tf.matmul(x, y, transpose_b=True) + band - log)
    dlogits = p * tf.matmul(d, v, transpose_b=True)
    dx = tf.matmul(dlogits, y[..., :-1])
    dy = tf.matmul(dlogits, x[..., :-1], transpose_a=True)
    dv = tf.matmul(p, d[..., :-1], transpose_a=True)
    return dx, dy, dv, dlogits


class Band:
    """Exact attention to near keys: pairs by chunk, and the gradients by token.

    Args:
        heads: a `Heads`.
        chunk: int, tokens of a chunk of queries.
        lead, trail: ints, numbers of keys that a chunk reads before and after its own
            tokens, multiples of `chunk` unless there is a single chunk.
        least, most: ints; a query sees the key at a distance from least to most. Later
            keys have negative distances.
        halves: bool, whether a query's own key has half its weight.
    """

    def __init__(self, heads, chunk, lead, trail, least, most, halves=False):
        self.heads, self.chunk, self.lead, self.trail = heads, chunk, lead, trail
        self.span = lead + chunk + trail
        token = positions(chunk * heads.group)[:, np.newaxis] // heads.group
        distance = token - (positions(self.span) - lead)
        visible = (distance >= least) & (distance <= most)
        self.addends = hidden_unless(visible, heads.dtype)
        if halves:
            own = tf.cast(distance == 0, heads.dtype)
            self.addends -= math.log(2) * own

    def pairs(self, x, y, v, seen, visible=None, gates=None):
        """Returns the arguments of `forward` and `backward`.

        Args:
            x: queries, `(X, rows, H)`.
            y, v: keys and values that the chunks read, `(X, tokens, dim)`.
            seen: bool `(B, tokens)`, true for visible keys.
            visible: bool `(X, chunks, rows, span)`, true for visible pairs, or `None`.
            gates: log-decays of the keys, `(X, tokens, 1)`, or `None`.
        """
        band = self.addends
        if visible is not None:
            band += hidden_unless(visible, band.dtype)
        if gates is not None:
            decays = between(self.spans(gates), self.chunk, self.trail or None)
            band += repeat(decays, self.heads.group, 2)
        x = with_ones(x * x.shape[2] ** -0.5)
        seen = self.heads.rows_of_mask(seen)
        y = tf.concat([y, hidden_unless(seen, y.dtype)], -1)
        return self.chunks(x), self.spans(y), self.spans(with_ones(v)), band

    def same_segment(self, numbers):
        """Returns pairs inside segments, bool `(X, chunks, rows, span)`.

        Args:
            numbers: int32 `(B, tokens)`, numbers of the segments of the keys.
        """
        numbers = self.heads.rows_of_mask(numbers)
        count = size(numbers, 1) - self.lead - self.trail
        queries = slice_of(numbers, self.lead, count)
        queries = self.chunks(repeat(queries, self.heads.group, 1))
        return queries == tf.transpose(self.spans(numbers), (0, 1, 3, 2))

    def forward(self, *pairs):
        """Returns means of values and log-sums, `(X, rows, V)` and `(X, rows, 1)`."""
        return tuple(map(from_chunks, softmax_means(*pairs)))

    def backward(self, pairs, d, log, with_gates):
        """Returns gradients of queries, keys, values and, if `with_gates`, of gates.

        Args:
            pairs: result of `pairs`.
            d, log: as in `softmax_gradients`, `(X, rows, ...)`.
            with_gates: bool.
        """
        d, log = map(self.chunks, (d, log))
        dx, *dkeys, dlogits = softmax_gradients(*pairs, d, log)
        if with_gates:
            dpairs = sum_of_rows(dlogits, self.chunk)
            dkeys.append(pull_between(dpairs, self.trail or None))
        return from_chunks(dx) * dx.shape[3] ** -0.5, *map(self._overlapped, dkeys)

    def chunks(self, x):
        """Cuts `(X, rows, dim)` into chunks `(X, chunks, rows of a chunk, dim)`."""
        return to_chunks(x, size(x, 1) // (self.chunk * self.heads.group))

    def spans(self, x):
        """Returns the keys that each chunk reads, `(X, chunks, span, dim)`."""
        if x.shape[1] == self.span:
            return x[:, tf.newaxis]
        x = to_chunks(x, size(x, 1) // self.chunk)
        shifts = self.span // self.chunk
        chunks = size(x, 1) - (shifts - 1)
        return tf.concat([slice_of(x, shift, chunks) for shift in range(shifts)], 2)

    def _overlapped(self, spans):
        """Adds up gradients of the keys that each chunk read, `(X, tokens, dim)`."""
        if spans.shape[1] == 1:
            return spans[:, 0]
        parts = tf.split(spans, self.span // self.chunk, 2)
        last = len(parts) - 1
        shifted = [
            tf.pad(part, [[0, 0], [shift, last - shift], [0, 0], [0, 0]])
            for shift, part in enumerate(parts)
        ]
        return from_chunks(tf.add_n(shifted))


def chunk_for(reach):
    """Returns the tokens of a chunk: as few as products of a fast size allow.

    Args:
        reach: int, the number of keys on one side that a query may see.
    """
    small = not (has_gpu() or has_tpu())
    tokens = min(max(1 << reach.bit_length(), LEAST), MOST) if small else MOST
    return max(tokens, ceil_div(reach, MAX_REACH))
