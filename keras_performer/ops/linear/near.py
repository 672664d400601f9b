"""Exact weights of the keys near a query, in the blocks of causal attention."""

import math
import typing

import tensorflow as tf

from keras_performer.ops.decays import between, pull_between, sum_of_rows
from keras_performer.ops.linear.chunkwise import from_chunks
from keras_performer.ops.local import weights
from keras_performer.ops.local.loops import chunk_for
from keras_performer.ops.normalizer import with_ones
from keras_performer.ops.shapes import ceil_div, repeat, size, sizes, slice_of


class Reach(typing.NamedTuple):
    """The distances of near keys, with exact weights, and of far keys.

    Attributes:
        delay: int, the least distance of far keys.
        nearest: int, 0 or 1, the least distance of visible keys.
        before: int, number of keys of a state before the key of the first query:
            `delay` or 0.
        bidirectional: bool, true if the batch has each sequence and its reverse; a
            query's own key then has half the weight in each.
    """

    delay: int = 0
    nearest: int = 0
    before: int = 0
    bidirectional: bool = False

    @property
    def near(self):
        """True if there are near keys."""
        return self.delay > self.nearest

    def with_reverses(self, *tensors):
        """Returns query, key and value, if bidirectional followed by reverses.

        Keys and values then have `before` tokens of a state at both ends.
        """
        if not self.bidirectional:
            return tensors
        reverses = (tf.reverse(x, [1]) for x in tensors)
        return tuple(
            tf.concat([_without_last(y, end), _without_last(z, end)], 0)
            for y, z, end in zip(tensors, reverses, self._ends)
        )

    def pull_reverses(self, *gradients):
        """Returns the gradients of the arguments of `with_reverses`."""
        if not self.bidirectional:
            return gradients
        halves = (
            tf.split(tf.pad(x, [[0, 0], [0, end], [0, 0], [0, 0]]) if end else x, 2)
            for x, end in zip(gradients, self._ends)
        )
        return tuple(x + tf.reverse(y, [1]) for x, y in halves)

    @property
    def _ends(self):
        """Numbers of tokens after the last one that query, key and value belong to."""
        return 0, self.before, self.before


def _without_last(x, count):
    return slice_of(x, 0, size(x, 1) - count) if count else x


class Near:
    """Attention to near keys: a chunk of queries reads `spans` chunks of keys.

    Args:
        reach: a `Reach` with near keys.
        heads: a `Heads`.
    """

    def __init__(self, reach, heads):
        self.reach, self.heads = reach, heads
        # a power of two, like most numbers of far chunks in a block
        self.chunk = 1 << (chunk_for(reach.delay - 1) - 1).bit_length()
        self.spans = 1 + ceil_div(reach.delay - 1, self.chunk)
        # keys that a chunk reads before its own
        self.lead = (self.spans - 1) * self.chunk

    def forward(self, x, y, v, seen, numbers, gates=None):
        """Returns means of values and log-sums, `(X, rows, V)` and `(X, rows, 1)`.

        Args:
            x: queries of a block, `(X, rows, H)`.
            y, v: keys and values, `(X, halo + tokens, dim)`, the halo first.
            seen: bool `(B, halo + tokens)`, true for visible keys.
            numbers: int32 `(B, halo + tokens)`, numbers of segments, or `None`.
            gates: log-decays `(X, halo + tokens, 1)`, or `None`.
        """
        found = weights.forward(*self._chunks(x, y, v, seen, numbers, gates))
        return tuple(from_chunks(z) for z in found)

    def backward(self, x, y, v, seen, numbers, gates, d, log):
        """Returns gradients of queries, keys, values and, if given, gates.

        Args:
            d: gradient of the sums of each row, times the sum of its weights.
            log: the log-sums of all keys, near and far, `(X, rows, 1)`.
        """
        chunks = self._chunks(x, y, v, seen, numbers, gates)
        d, log = (tf.reshape(z, (*sizes(chunks[0])[:3], -1)) for z in (d, log))
        dx, *dkeys, dlogits = weights.backward(*chunks, d, log)
        if gates is not None:
            dkeys.append(pull_between(sum_of_rows(dlogits, self.chunk)))
        before = [[0, 0], [self._first(y, x), 0], [0, 0]]
        dkeys = [tf.pad(self._added(z), before) for z in dkeys]
        return from_chunks(dx) * x.shape[2] ** -0.5, *dkeys

    def _first(self, y, x):
        """Returns the index of the first key that the block reads."""
        return size(y, 1) - size(x, 1) // self.heads.group - self.lead

    def _chunks(self, x, y, v, seen, numbers, gates):
        """Returns the arguments `(x, y, v, band)` of `weights.forward`."""
        group, first = self.heads.group, self._first(y, x)
        length = size(y, 1) - first
        y, v, seen = (slice_of(z, first, length) for z in (y, v, seen))
        seen = self.heads.mask_rows(seen[:, tf.newaxis], 0)
        y = tf.concat([y, weights.hidden_unless(seen, y.dtype)], -1)
        x = with_ones(x * x.shape[2] ** -0.5)
        x = tf.reshape(x, (size(x, 0), -1, self.chunk * group, size(x, 2)))
        token = repeat(tf.range(self.chunk), group, 0)[:, tf.newaxis]
        distance = token + self.lead - tf.range(self.spans * self.chunk)
        near = tf.logical_and(
            distance >= self.reach.nearest, distance < self.reach.delay
        )
        if numbers is not None:
            numbers = slice_of(numbers, first, length)[:, tf.newaxis]
            numbers = self.heads.mask_rows(numbers, 0)
            queries = slice_of(numbers, self.lead, length - self.lead)
            queries = tf.reshape(repeat(queries, group, 1), (*sizes(x)[:3], 1))
            keys = tf.transpose(self._read(numbers), (0, 1, 3, 2))
            near = tf.logical_and(near, queries == keys)
        band = weights.hidden_unless(near, y.dtype)
        if self.reach.bidirectional:
            band -= math.log(2) * tf.cast(distance == 0, band.dtype)
        if gates is not None:
            read = self._read(slice_of(gates, first, length))
            band += repeat(between(read, self.chunk), group, 2)
        return x, self._read(y), self._read(with_ones(v)), band

    def _read(self, x):
        """Returns the keys that each chunk reads, `(X, chunks, span, dim)`."""
        x = tf.reshape(x, (size(x, 0), -1, self.chunk, size(x, 2)))
        count = size(x, 1) - (self.spans - 1)
        return tf.concat([slice_of(x, k, count) for k in range(self.spans)], 2)

    def _added(self, x):
        """Adds up gradients of the keys that each chunk read, `(X, tokens, dim)`."""
        last = self.spans - 1
        parts = [
            tf.pad(part, [[0, 0], [k, last - k], [0, 0], [0, 0]])
            for k, part in enumerate(tf.split(x, self.spans, 2))
        ]
        return from_chunks(tf.add_n(parts))
