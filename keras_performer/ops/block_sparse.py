"""Exact attention of blocks of queries to some blocks of keys."""

import tensorflow as tf

from keras_performer.ops.big_bird import NONE, SeenBlocks
from keras_performer.ops.checks import check_attention_inputs
from keras_performer.ops.exact import attend_to_seen, scores_of_seen
from keras_performer.ops.shapes import ceil_div, size
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility, mask_or_all


def number_of_blocks(length, block_size):
    """How many blocks a sequence has, the last padded; one of no tokens has one."""
    count = ceil_div(length, block_size)
    return max(count, 1) if isinstance(count, int) else tf.maximum(count, 1)


def block_sparse_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    blocks: SeenBlocks,
    block_size: int,
    key_mask: TensorLike | Visibility | None = None,
) -> tf.Tensor:
    """Softmax attention of each block of tokens to the blocks that it sees.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        blocks: `SeenBlocks` of K heads and as many blocks as T tokens need.
        block_size: int, tokens of a block.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`, which may hide later keys. Those that see all do so only
            where it does not.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`, 0 where no key is
        visible. Time and memory are those of `block_size` keys for each block seen and
        each query.

    Example:

    >>> steps = tf.reshape(tf.range(6.0), (1, 6, 1, 1))
    >>> table = tf.constant([[[0, -1], [0, 2], [2, -1]]])
    >>> blocks = SeenBlocks(table, tf.constant([2]))
    >>> y = block_sparse_attention(0 * steps, steps, steps, blocks, block_size=2)
    >>> y[0, :, 0, 0].numpy().tolist()
    [0.5, 0.5, 2.5, 2.5, 2.5, 2.5]
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask)
    check_attention_inputs(query, key, value, visible)
    if not query.shape[:2].is_compatible_with(key.shape[:2]):
        raise ValueError(
            "Attention of blocks needs one key for each query: use another for "
            "attention to another sequence. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    cut = _Cut(key, blocks, block_size)
    seen = mask_or_all(visible.key_mask, key)
    rows = cut.rows(query)
    keys, values = (cut.seen_keys(x) for x in (key, value))
    attended = attend_to_seen(rows, keys, values, cut.seen(seen, visible.causal))
    output = cut.joined(attended, query, value)
    if blocks.all_seeing.shape[0]:
        output = cut.with_all_seeing(output, query, key, value, seen)
    return tf.cast(output[:, : size(query, 1)], query.dtype)


def block_sparse_scores(
    query: tf.Tensor,
    key: tf.Tensor,
    blocks: SeenBlocks,
    block_size: int,
    visible: Visibility,
) -> tf.Tensor:
    """The weights of `block_sparse_attention`, `(B, N, T, T)`, for looking."""
    length = size(query, 1)
    count = size(blocks.table, 1)
    numbers = tf.range(count)
    seen = tf.reduce_any(blocks.table[..., tf.newaxis] == numbers, 2)
    all_seeing = tf.reduce_any(numbers[:, tf.newaxis] == blocks.all_seeing, -1)
    seen = tf.logical_or(seen, all_seeing[:, tf.newaxis])
    for axis in (1, 2):
        seen = tf.repeat(seen, block_size, axis)
    seen = seen[:, :length, :length]
    anyone = visible.matrix(length, length)[:, tf.newaxis]
    return scores_of_seen(query, key, tf.logical_and(seen, anyone))


class _Cut:
    """A sequence in blocks, and what each block of queries sees of it.

    Blocks of queries, in all examples and key-value heads, are one axis X, and stand
    in the place of a batch; each has one key-value head.
    """

    def __init__(self, key, blocks, block_size):
        self.table, self.all_seeing = blocks
        self.tokens = block_size
        self.heads = key.shape[2]
        self.length = size(key, 1)
        self.count = number_of_blocks(self.length, block_size)
        self.batch = size(key, 0)

    def cut(self, x):
        """`(B, T, ...)` to `(B, count, tokens, ...)`, padded with zeros."""
        missing = self.count * self.tokens - self.length
        x = tf.pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (len(x.shape) - 2))
        return tf.reshape(x, (-1, self.count, self.tokens, *x.shape[2:]))

    def rows(self, query):
        """Queries in blocks, `(X, tokens, N / K, H)`."""
        heads, dim = query.shape[2:]
        shape = -1, self.count, self.tokens, self.heads, heads // self.heads, dim
        x = tf.transpose(tf.reshape(self.cut(query), shape), (0, 3, 1, 2, 4, 5))
        return tf.reshape(x, (-1, *x.shape[3:]))

    def seen_keys(self, x):
        """The keys or values that each block sees, `(X, seen * tokens, 1, dim)`."""
        dim = x.shape[3]
        x = tf.transpose(self.cut(x), (0, 3, 1, 2, 4))
        x = tf.reshape(x, (-1, self.heads, self.count, self.tokens * dim))
        x = tf.gather(x, self._places(), axis=2, batch_dims=2)
        return tf.reshape(x, (-1, self.table.shape[2] * self.tokens, 1, dim))

    def seen(self, key_mask, causal):
        """Which of these keys are visible, `(X, tokens, seen * tokens)`; or `(X, 1,`
        where all queries of a block see the same."""
        mask = tf.repeat(self.cut(key_mask)[:, tf.newaxis], self.heads, 1)
        mask = tf.gather(mask, self._places(), axis=2, batch_dims=2)
        there = self.table != NONE
        mask = tf.logical_and(mask, there[..., tf.newaxis])
        keys = self.table.shape[2] * self.tokens
        mask = tf.reshape(mask, (-1, self.heads, self.count, 1, keys))
        if causal:
            within = tf.range(self.tokens)
            key_times = self.table[..., tf.newaxis] * self.tokens + within
            key_times = tf.reshape(key_times, (self.heads, self.count, 1, keys))
            times = tf.range(self.count)[:, tf.newaxis] * self.tokens + within
            mask = tf.logical_and(mask, key_times <= times[..., tf.newaxis])
        return tf.reshape(mask, (-1, self.tokens if causal else 1, keys))

    def joined(self, attended, query, value):
        """The inverse of `rows`, of attended values: `(B, count * tokens, N, V)`."""
        group, dim = query.shape[2] // self.heads, value.shape[3]
        shape = -1, self.heads, self.count, self.tokens, group, dim
        x = tf.transpose(tf.reshape(attended, shape), (0, 2, 3, 1, 4, 5))
        shape = -1, self.count * self.tokens, query.shape[2], dim
        return tf.reshape(x, shape)

    def with_all_seeing(self, output, query, key, value, key_mask):
        """Output in which the blocks that see all keys have done so."""
        of_all = tf.gather(self.cut(query), self.all_seeing, axis=1)
        number, tokens = self.all_seeing.shape[0], self.tokens
        rows = tf.reshape(of_all, (-1, number * tokens, *query.shape[2:]))
        rows = attend_to_seen(rows, key, value, key_mask[:, tf.newaxis])
        own = tf.range(self.count)[:, tf.newaxis] == self.all_seeing
        sees_all = tf.reduce_any(own, -1)[:, tf.newaxis, tf.newaxis, tf.newaxis]
        place = tf.argmax(tf.cast(own, tf.int32), -1)
        rest = output.shape[2:]
        rows = tf.reshape(rows, (-1, number, tokens, *rest))
        blocks = tf.reshape(output, (-1, self.count, tokens, *rest))
        blocks = tf.where(sees_all, tf.gather(rows, place, axis=1), blocks)
        return tf.reshape(blocks, (-1, self.count * tokens, *rest))

    def _places(self):
        """The table for each example, `(B, K, count, seen)`; for none any block."""
        places = tf.maximum(self.table, 0)[tf.newaxis]
        return tf.repeat(places, self.batch, 0)
