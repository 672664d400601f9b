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
    """

    key: tf.Tensor
    value: tf.Tensor
    seen: tf.Tensor

    @classmethod
    def empty(cls, batch_size, sliding_window, num_heads, key_dim, value_dim, dtype):
        """Returns the state before the first token."""
        shape = batch_size, sliding_window, num_heads
        return cls(
            tf.zeros((*shape, key_dim), dtype),
            tf.zeros((*shape, value_dim), dtype),
            tf.zeros((batch_size, sliding_window), tf.bool),
        )

    @classmethod
    def of(cls, key, value, key_mask):
        """Returns all keys, with masked keys hidden; `None` hides none."""
        # the logit of a huge hidden key could outweigh the addend that hides it
        key = without_hidden(key, key_mask)
        return cls(key, value, mask_or_all(key_mask, key))

    def followed_by(self, later):
        """Joins these keys and `Recent` later ones."""
        joined = [tf.concat([tf.cast(x, y.dtype), y], 1) for x, y in zip(self, later)]
        return Recent(*joined)

    def joined(self, later, count):
        """Returns the last keys of two joined pieces, from the last keys of each.

        Args:
            later: `Recent` of the later piece, of the same window.
            count: int32 tensor `()` or `(B,)`, number of tokens of that piece.

        Returns:
            `(recent, left_out)`, both `Recent`: the last W keys of the joined piece;
            and these keys, with the keys in `recent` hidden.
        """
        shape = size(self.seen, 0), size(self.seen, 1)
        window = shape[1]
        slots = tf.broadcast_to(tf.range(window), shape)
        count = tf.minimum(tf.reshape(count, (-1, 1)), window)
        taken = slots + tf.where(slots < window - count, count, window)
        recent = [tf.gather(x, taken, batch_dims=1) for x in self.followed_by(later)]
        left_out = tf.logical_and(self.seen, slots < count)
        return Recent(*recent), self._replace(seen=left_out)

    def between(self, start, stop):
        """Returns a slice of these keys."""
        return Recent(*(x[:, start:stop] for x in self))

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
            return Recent(*(_last(x, count) for x in self))
        keys = self.between(-count, None)
        return earlier.followed_by(keys).between(-count, None)

    def _if_true(self, mask):
        """Returns these keys, hidden where the mask is false."""
        return self._replace(seen=tf.logical_and(self.seen, mask))


def _last(x, count):
    """Returns `x[:, -count:]`, after zeros if x is shorter."""
    x = x[:, -count:]
    rest = [[0, 0]] * (len(x.shape) - 2)
    return pad(x, [[0, 0], [count - size(x, 1), 0], *rest])


class DecayingRecent(typing.NamedTuple):
    """The last keys of a sequence, and their decays: the state with a forget gate.

    Attributes:
        key, value, seen: as in `Recent`.
        decay: the log-decays of these keys, `(B, W, K)`, float32 or float64.
    """

    key: tf.Tensor
    value: tf.Tensor
    seen: tf.Tensor
    decay: tf.Tensor

    @classmethod
    def empty(cls, batch_size, sliding_window, num_heads, key_dim, value_dim, dtype):
        """Returns the state before the first token."""
        shape = batch_size, sliding_window, num_heads
        keys = Recent.empty(*shape, key_dim, value_dim, dtype)
        return cls(*keys, tf.zeros(shape, sum_dtype(dtype)))


def keys_and_decays(state, decay):
    """Returns the keys of a state, and the log-decays of these and later keys.

    Args:
        state: `DecayingRecent`; `Recent` without decays; or `None`.
        decay: log-decays of the later keys, `(B, T, K)`, or `None`.
    """
    if state is None or decay is None:
        return state, decay
    if not isinstance(state, DecayingRecent):
        raise ValueError(
            "With decays, state must be a DecayingRecent (key, value, seen, decay), "
            "from DecayingRecent.empty or an earlier call. Received: state of "
            f"type {type(state).__name__}"
        )
    *keys, earlier = state
    return Recent(*keys), tf.concat([earlier, tf.cast(decay, earlier.dtype)], 1)


def check_recent(state, window, key, value, visible):
    """Raises a `ValueError` unless a state fits the window and the keys."""
    if state is None:
        return
    if not visible.causal:
        raise ValueError(
            "Only causal attention has a state: use Visibility(..., causal=True). "
            "Received: a state, and causal=False"
        )
    if not isinstance(state, Recent):
        raise ValueError(
            "state must be a Recent (key, value, seen), from Recent.empty or an "
            f"earlier call. Received: state of type {type(state).__name__}"
        )
    rows = key.shape[0], window
    expected = (*rows, *key.shape[2:]), (*rows, *value.shape[2:]), rows
    for name, x, shape in zip(Recent._fields, state, expected):
        if not tf.TensorShape(shape).is_compatible_with(x.shape):
            raise ValueError(
                "state must come from an earlier call with the same window and batch "
                f"size: {name} of shape {shape}. Received: {name} of shape "
                f"{tuple(x.shape)}"
            )


def reach_within(window, query, state):
    """Returns the number of keys on one side that a query may see."""
    length = query.shape[1]
    if state is not None or length is None:
        return window - 1
    return min(window, max(length, 1)) - 1
