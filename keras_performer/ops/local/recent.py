"""States of local attention: the last keys of a sequence."""

import typing

import tensorflow as tf

from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import pad, size, sum_dtype
from keras_performer.ops.visibility import mask_or_all, without_hidden


class Recent(typing.NamedTuple):
    """The last keys of a sequence: the state of local attention.

    Attributes:
        key: tensor `(B, W, K, H)`.
        value: tensor `(B, W, K, V)`.
        seen: bool tensor `(B, W)`, false for hidden keys and for slots before the first
            key.
        decay: log-decays of the keys, `(B, W, K)`, float32 or float64; `None` without a
            forget gate.
    """

    key: tf.Tensor
    value: tf.Tensor
    seen: tf.Tensor
    decay: tf.Tensor | None = None

    @classmethod
    def empty(
        cls,
        batch_size,
        sliding_window,
        num_heads,
        key_dim,
        value_dim,
        dtype,
        with_decay=False,
    ):
        """Returns the state before the first token."""
        shape = batch_size, sliding_window, num_heads
        return cls(
            tf.zeros((*shape, key_dim), dtype),
            tf.zeros((*shape, value_dim), dtype),
            tf.zeros((batch_size, sliding_window), tf.bool),
            tf.zeros(shape, sum_dtype(dtype)) if with_decay else None,
        )

    @classmethod
    def of(cls, key, value, key_mask, decay=None):
        """Returns all keys, with masked keys hidden; `None` hides none."""
        # the logit of a huge hidden key could outweigh the addend that hides it
        key = without_hidden(key, key_mask)
        return cls(key, value, mask_or_all(key_mask, key), decay)

    def followed_by(self, later):
        """Joins these keys and `Recent` later ones."""

        def joined(x, y):
            return None if y is None else tf.concat([tf.cast(x, y.dtype), y], 1)

        return Recent(*map(joined, self, later))

    def between(self, start, stop):
        """Returns a slice of these keys."""
        return self._each(lambda x: x[:, start:stop])

    def reversed(self):
        """Returns these keys in reverse order."""
        return self._each(lambda x: tf.reverse(x, [1]))

    def last(self, count, earlier, starts=None):
        """Returns the last of earlier keys, or hidden slots, followed by these keys.

        Args:
            count: int, number of keys.
            earlier: `Recent` of `count` keys, or `None`.
            starts: as in `Visibility`. Keys outside the last token's segment are then
                hidden, as no later token sees them. Defaults to `None`.
        """
        if starts is not None:
            numbers = segment_numbers(starts)
            last = tf.reduce_max(numbers, 1, keepdims=True)
            keys = self._if_true(numbers == last)
            if earlier is not None:
                earlier = earlier._if_true(last <= 0)
            return keys.last(count, earlier)
        if earlier is None:
            return self._each(lambda x: _last(x, count))
        keys = self.between(-count, None)
        return earlier.followed_by(keys).between(-count, None)

    def _each(self, function):
        return Recent(*(None if x is None else function(x) for x in self))

    def _if_true(self, mask):
        """Returns these keys, hidden where the mask is false."""
        return self._replace(seen=tf.logical_and(self.seen, mask))


def _last(x, count):
    """Returns `x[:, -count:]`, after zeros if x is shorter."""
    x = x[:, -count:]
    rest = [[0, 0]] * (len(x.shape) - 2)
    return pad(x, [[0, 0], [count - size(x, 1), 0], *rest])


def check_recent(state, window, keys, visible):
    """Raises a `ValueError` unless a state fits the window and `Recent` later keys."""
    if state is None:
        return
    if not visible.causal:
        raise ValueError(
            "Only causal attention has a state: use Visibility(..., causal=True). "
            "Received: a state, and causal=False"
        )
    if not isinstance(state, Recent):
        raise ValueError(
            "state must be a Recent (key, value, seen, decay), from Recent.empty or an "
            f"earlier call. Received: state of type {type(state).__name__}"
        )
    check_decays(state, keys)
    for name, x, like in zip(Recent._fields, state, keys):
        shape = None if like is None else (like.shape[0], window, *like.shape[2:])
        if shape and not tf.TensorShape(shape).is_compatible_with(x.shape):
            raise ValueError(
                "state must come from an earlier call with the same window and batch "
                f"size: {name} of shape {shape}. Received: {name} of shape "
                f"{tuple(x.shape)}"
            )


def check_decays(state, keys):
    """Raises a `ValueError` unless a state has decays just if the later keys do."""
    if (state.decay is None) != (keys.decay is None):
        has, lacks = ("state", "call") if keys.decay is None else ("call", "state")
        raise ValueError(
            "Pass decay in every call that shares a state, or in none; start with a "
            "state made with_decay=True if you pass it. Received: decay in the "
            f"{has}, none in the {lacks}"
        )


def reach_within(window, query, state):
    """Returns the number of keys on one side that a query may see."""
    length = query.shape[1]
    if state is not None or length is None:
        return window - 1
    return min(window, max(length, 1)) - 1
