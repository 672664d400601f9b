"""Visibility: one object for all masks of an attention."""

import typing

import tensorflow as tf

from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import TensorLike, size


class Visibility(typing.NamedTuple):
    """Masks of one attention: the keys that each query may see.

    A `Visibility` is a nest of tensors, so it can pass through compiled functions and
    branches of a graph; `causal` and `sliding_window` are known when a graph is traced.
    `causal`, `starts` and `global_tokens` need as many queries as keys.

    Attributes:
        key_mask: bool tensor of shape `(B, S)`, true for keys that may be seen, or
            `None` for all.
        causal: bool, whether query t sees only keys 0 to t.
        sliding_window: int W: query t sees only keys less than W tokens away; `None`
            for any distance.
        starts: bool tensor of shape `(B, S)`, true for the first token of each segment
            of a packed sequence, from `segment_starts`; or `None` for one segment. A
            query sees keys of its own segment only. Tokens before the first start
            continue the segment of a state.
        global_tokens: bool tensor of shape `(B, S)`, true for tokens that ignore the
            window: they see all keys, and all queries see them; `None` for no global
            tokens.

    Example:

    >>> visible = Visibility(tf.constant([[True, True, False]]), causal=True)
    >>> visible.matrix(3, 3).numpy().astype(int).tolist()
    [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]
    """

    key_mask: tf.Tensor | None = None
    causal: bool = False
    sliding_window: int | None = None
    starts: tf.Tensor | None = None
    global_tokens: tf.Tensor | None = None

    @classmethod
    def of(
        cls, key_mask: "TensorLike | Visibility | None", causal: bool = False
    ) -> "Visibility":
        """Returns the `Visibility` for a mask of keys, `None` or a `Visibility`."""
        given = key_mask if isinstance(key_mask, cls) else cls(key_mask)
        mask, starts, global_tokens = (
            x if x is None else tf.cast(tf.convert_to_tensor(x), tf.bool)
            for x in (given.key_mask, given.starts, given.global_tokens)
        )
        causal = given.causal or causal
        return cls(mask, causal, given.sliding_window, starts, global_tokens)

    def hides_keys(self) -> bool:
        """Returns False if every query sees every key."""
        hidden = self.key_mask, self.sliding_window, self.starts
        return self.causal or any(x is not None for x in hidden)

    def matrix(
        self, num_queries: int | tf.Tensor, num_keys: int | tf.Tensor
    ) -> tf.Tensor:
        """Returns the mask of all pairs: bool, `(B, T, S)` or broadcastable to it.

        Args:
            num_queries: int or scalar tensor T.
            num_keys: int or scalar tensor S.
        """
        return self.rows(tf.range(num_queries), num_keys)

    def rows(self, queries: TensorLike, num_keys: int | tf.Tensor) -> tf.Tensor:
        """Returns the mask of some queries: bool, broadcastable to `(B, rows, S)`.

        Args:
            queries: int tensor `(rows,)`, indices of the queries.
            num_keys: int or scalar tensor S.
        """
        queries = tf.convert_to_tensor(queries, tf.int32)
        visible = tf.ones((1, 1, num_keys), tf.bool)
        if self.key_mask is not None:
            visible = self.key_mask[:, tf.newaxis]
        distance = queries[:, tf.newaxis] - tf.range(num_keys)
        if self.causal:
            visible = tf.logical_and(visible, distance >= 0)
        if self.sliding_window is not None:
            near = tf.abs(distance) < self.sliding_window
            if self.global_tokens is not None:
                rows = tf.gather(self.global_tokens, queries, axis=1)[:, :, tf.newaxis]
                anywhere = tf.logical_or(rows, self.global_tokens[:, tf.newaxis])
                near = tf.logical_or(near, anywhere)
            visible = tf.logical_and(visible, near)
        if self.starts is not None:
            number = segment_numbers(self.starts)
            own = tf.gather(number, queries, axis=1)
            same = own[:, :, tf.newaxis] == number[:, tf.newaxis]
            visible = tf.logical_and(visible, same)
        return visible


def mask_or_all(key_mask, key):
    """Returns a bool mask of keys `(B, S)`, true for all if `key_mask` is `None`."""
    if key_mask is None:
        return tf.ones((size(key, 0), size(key, 1)), tf.bool)
    return key_mask


def without_hidden(x, key_mask):
    """Sets keys or values `(..., K, dim)` to 0 where a mask `(...)` hides them."""
    if key_mask is None:
        return x
    return tf.where(key_mask[..., tf.newaxis, tf.newaxis], x, tf.zeros_like(x))
