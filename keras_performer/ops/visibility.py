"""Who may see whom: one object for every mask of an attention."""

import typing

import tensorflow as tf

from keras_performer.ops.tensors import TensorLike


class Visibility(typing.NamedTuple):
    """Which keys the queries of one attention may see.

    It is a nest of tensors, as compiled functions and branches of a graph take it; what
    is not a tensor is known when a graph is made.

    Attributes:
        key_mask: bool tensor of shape `(B, S)`, true for keys that may be seen, or
            `None` for all.
        causal: bool, whether query t sees keys 0 to t only. There are as many queries
            as keys then.
        sliding_window: int W, query t sees keys at less than this distance only; or
            `None` for any distance.

    Example:

    >>> visible = Visibility(tf.constant([[True, True, False]]), causal=True)
    >>> visible.matrix(3, 3).numpy().astype(int).tolist()
    [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]
    """

    key_mask: tf.Tensor | None = None
    causal: bool = False
    sliding_window: int | None = None

    @classmethod
    def of(
        cls,
        key_mask: "TensorLike | Visibility | None",
        causal: bool = False,
        sliding_window: int | None = None,
    ) -> "Visibility":
        """A `Visibility` of a mask of keys, of `None`, or of a `Visibility`."""
        if isinstance(key_mask, cls):
            causal = key_mask.causal or causal
            sliding_window = sliding_window or key_mask.sliding_window
            key_mask = key_mask.key_mask
        if key_mask is not None:
            key_mask = tf.cast(tf.convert_to_tensor(key_mask), tf.bool)
        return cls(key_mask, causal, sliding_window)

    def matrix(
        self, num_queries: int | tf.Tensor, num_keys: int | tf.Tensor
    ) -> tf.Tensor:
        """Who sees whom in full: bool, `(B, T, S)` or broadcastable to it.

        Args:
            num_queries: int or scalar tensor T.
            num_keys: int or scalar tensor S.
        """
        visible = tf.ones((1, 1, num_keys), tf.bool)
        if self.key_mask is not None:
            visible = self.key_mask[:, tf.newaxis]
        distance = tf.range(num_queries)[:, tf.newaxis] - tf.range(num_keys)
        if self.causal:
            visible = tf.logical_and(visible, distance >= 0)
        if self.sliding_window is not None:
            visible = tf.logical_and(visible, tf.abs(distance) < self.sliding_window)
        return visible

    def in_blocks(self, blocks, heads, batch_size):
        """What a loop over `blocks` of keys asks."""
        return VisibleBlocks(self.key_mask, blocks, heads, batch_size)


class VisibleBlocks:
    """A `Visibility` in a loop over the blocks of a sequence.

    Args:
        key_mask: bool tensor `(B, S)` or `None`.
        blocks: the `Blocks` of the keys; what pads the last block is hidden.
        heads: a `Heads`.
        batch_size: int or scalar tensor B.
    """

    def __init__(self, key_mask, blocks, heads, batch_size):
        self._mask = blocks.cut_mask(key_mask, batch_size)
        self._heads = heads

    def rows(self, i):
        """Keys of block i that may be seen, `(X, tokens, 1)`; `None` for all."""
        return self._heads.mask_rows(self._mask, i)

    def pairs(self, tokens):
        """Keys of its own chunk that a query row may see, `(tokens * N / K, tokens)`.

        Args:
            tokens: int or scalar tensor, tokens of a chunk.
        """
        keys = tf.range(tokens)
        return tf.repeat(keys, self._heads.group)[:, tf.newaxis] >= keys
