"""The distances of near keys, with exact weights, and of far keys."""

import typing

import tensorflow as tf

from keras_performer.ops.local.band import Band, chunk_for
from keras_performer.ops.shapes import ceil_div, size, slice_of


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
        """Returns query, key and value.

        If bidirectional, the reversed sequences follow the sequences in the batch. Keys
        and values then have `before` tokens of a state at both ends.
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

    def band(self, heads):
        """Returns the `Band` of the near keys."""
        reach = self.delay - 1
        # a power of two, like the number of far chunks in a block
        chunk = 1 << (chunk_for(reach) - 1).bit_length()
        lead = ceil_div(reach, chunk) * chunk
        return Band(heads, chunk, lead, 0, self.nearest, reach, self.bidirectional)


def _without_last(x, count):
    return slice_of(x, 0, size(x, 1) - count) if count else x
