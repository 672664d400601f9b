"""Big Bird: block-sparse attention with global and random blocks.

Integer operations make random blocks from a seed, the head and the block, because
TensorFlow's own random numbers change when XLA compiles.
"""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.config import KeepsWithoutEntry
from keras_performer.layers.dense import full_weight
from keras_performer.layers.performer import seed_or_random
from keras_performer.ops.blocks import Blocks
from keras_performer.ops.checks import check_attention_inputs
from keras_performer.ops.exact import attend_to_seen
from keras_performer.ops.shapes import TensorLike, size
from keras_performer.ops.visibility import Visibility, mask_or_all

# An empty entry in a table of blocks.
NONE = -1
# A number greater than the index of any block.
BEYOND = 2**31 - 1


class SeenBlocks(typing.NamedTuple):
    """Blocks of keys that the blocks of queries see.

    Attributes:
        table: int32 tensor `(K, count, seen)`, for each key-value head and block of
            queries the indices of visible blocks, each once; -1 fills empty entries.
        all_seeing: int32 tensor, indices of the blocks of queries that see all keys; an
            index may occur twice.
    """

    table: tf.Tensor
    all_seeing: tf.Tensor


def big_bird_blocks(
    count: int | tf.Tensor,
    num_heads: int,
    num_global_blocks: int,
    num_random_blocks: int,
    seed: TensorLike,
    causal: bool = False,
) -> SeenBlocks:
    """Chooses the blocks of keys that each block sees, as in `BigBirdAttention`.

    Args:
        count: int or scalar tensor, number of blocks.
        num_heads: int K, key-value heads; each has its own random blocks.
        num_global_blocks: int, number of global blocks.
        num_random_blocks: int, number of random blocks for each block.
        seed: int32 scalar.
        causal: bool, hide later blocks. Defaults to `False`.

    Returns:
        `SeenBlocks`, whose table has `3 + num_global_blocks + num_random_blocks`
        entries for each block, or one less if causal.

    Reference:
        Zaheer et al. 2020, Big Bird, arXiv 2007.14062, section 2 and appendix D.

    Example:

    >>> blocks = big_bird_blocks(6, 1, num_global_blocks=2, num_random_blocks=1, seed=0)
    >>> blocks.table[0, 1].numpy().tolist()  # window, global, random
    [0, 1, 2, -1, 5, 4]
    >>> blocks.all_seeing.numpy().tolist()
    [0, 5]
    """
    own = tf.range(count)[:, tf.newaxis]
    window = own + (tf.range(-1, 1) if causal else tf.range(-1, 2))
    num_last = 0 if causal else num_global_blocks // 2
    first = tf.range(num_global_blocks - num_last)
    all_seeing = tf.concat([first, count - 1 - tf.range(num_last)], 0)
    # there may be fewer blocks than `num_global_blocks`
    all_seeing = tf.clip_by_value(all_seeing, 0, count - 1)
    everywhere = tf.repeat(all_seeing[tf.newaxis], count, 0)
    table = tf.concat([window, everywhere], 1)
    end = own + 1 if causal else count
    inside = tf.logical_and(table >= 0, table < end)
    table = _each_once(tf.where(inside, table, NONE))
    table = tf.repeat(table[tf.newaxis], num_heads, 0)
    numbers = _uniform(seed, (num_heads, count, num_random_blocks))
    for i in range(num_random_blocks):
        drawn = _drawn_from_others(table, end, numbers[..., i : i + 1])
        table = tf.concat([table, drawn], -1)
    # if causal, the first blocks see all earlier blocks anyway
    return SeenBlocks(table, all_seeing[:0] if causal else all_seeing)


def _each_once(table):
    """Replaces repeated entries in the rows of a table `(count, seen)` by `NONE`."""
    width = table.shape[-1]
    equal = table[..., tf.newaxis] == table[..., tf.newaxis, :]
    earlier = tf.range(width)[:, tf.newaxis] > tf.range(width)
    again = tf.reduce_any(tf.logical_and(equal, earlier), -1)
    return tf.where(again, NONE, table)


def _drawn_from_others(table, end, number):
    """Samples a block before `end` that is not in a table; `NONE` if there is none.

    The table is `(K, count, seen)`; `number` `(K, count, 1)`, in [0, 1), selects one.
    """
    taken = tf.sort(tf.where(table == NONE, BEYOND, table), -1)
    there = tf.cast(table != NONE, tf.int32)
    others = end - tf.reduce_sum(there, -1, keepdims=True)
    ordinal = tf.cast(number * tf.cast(others, number.dtype), tf.int32)
    ordinal = tf.minimum(ordinal, others - 1)
    # number of other blocks before each taken block
    before = taken - tf.range(table.shape[-1])
    skipped = tf.cast(before <= ordinal, tf.int32)
    drawn = ordinal + tf.reduce_sum(skipped, -1, keepdims=True)
    return tf.where(others > 0, drawn, NONE)


def _uniform(seed, shape):
    """Float32 numbers in [0, 1); each depends only on the seed and its indices."""
    x = tf.cast(tf.convert_to_tensor(seed, tf.int32), tf.uint32)
    for length in shape:
        index = tf.cast(tf.range(1, length + 1), tf.uint32)
        # 2^32 / golden ratio, so that neighbours are far apart
        x = _scattered(x[..., tf.newaxis] + index * _bits(0x9E3779B9))
    # the 24 bits that float32 holds exactly
    bits = tf.cast(tf.bitwise.right_shift(x, _bits(8)), tf.float32)
    return bits * 2.0**-24


def _scattered(x):
    """Permutes uint32 by C. Wellons' "lowbias32": each bit depends on all bits."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(x, _bits(shift))
        x = tf.bitwise.bitwise_xor(x, shifted) * _bits(factor)
    return x


def _bits(number):
    return tf.constant(number, tf.uint32)


# -- Exact attention of blocks of queries to some blocks of keys.


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
        blocks: `SeenBlocks` for K heads and for all blocks of T tokens.
        block_size: int, tokens of a block.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`, which may hide later keys, also from blocks that see all.
            Defaults to `None`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`, 0 where no key is
        visible. For each query, time and memory grow with `block_size` and the number
        of blocks that it sees.

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
            "Block-sparse attention needs one key for each query: use another "
            "attention for cross-attention. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    cut = _Cut(key, blocks, block_size)
    seen = mask_or_all(visible.key_mask, key)
    rows = cut.rows(query)
    keys, values = (cut.seen_keys(x) for x in (key, value))
    attended = attend_to_seen(rows, keys, values, cut.seen(seen, visible.causal))
    output = cut.from_rows(attended)
    if blocks.all_seeing.shape[0]:
        output = cut.with_all_seeing(output, query, key, value, seen)
    shape = -1, cut.count * cut.tokens, query.shape[2], value.shape[3]
    return tf.cast(tf.reshape(output, shape)[:, : size(query, 1)], query.dtype)


class _Cut(Blocks):
    """A sequence cut into blocks, and the keys that each block of queries sees.

    The blocks of queries of all examples and key-value heads form one axis X, which
    serves as the batch axis; each has one key-value head.
    """

    def __init__(self, key, blocks, block_size):
        super().__init__(size(key, 1), block_size, multiple=block_size)
        self.tokens = block_size  # an int for unknown lengths, too
        self.table, self.all_seeing = blocks
        self.indices = tf.maximum(self.table, 0)  # `NONE` becomes 0
        self.heads = key.shape[2]

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
        indices = tf.repeat(self.indices[tf.newaxis], size(x, 0), 0)
        x = tf.gather(x, indices, axis=2, batch_dims=2)
        return tf.reshape(x, (-1, self.table.shape[2] * self.tokens, 1, dim))

    def seen(self, key_mask, causal):
        """Mask of the keys of `seen_keys`, `(X, tokens or 1, seen * tokens)`."""
        mask = tf.gather(self.cut(key_mask), self.indices, axis=1)
        mask = tf.logical_and(mask, (self.table != NONE)[..., tf.newaxis])
        keys = self.table.shape[2] * self.tokens
        mask = tf.reshape(mask, (-1, self.heads, self.count, 1, keys))
        if causal:
            within = tf.range(self.tokens)
            key_times = self.table[..., tf.newaxis] * self.tokens + within
            key_times = tf.reshape(key_times, (self.heads, self.count, 1, keys))
            times = tf.range(self.count)[:, tf.newaxis] * self.tokens + within
            mask = tf.logical_and(mask, key_times <= times[..., tf.newaxis])
        return tf.reshape(mask, (-1, self.tokens if causal else 1, keys))

    def from_rows(self, attended):
        """Attended values of `rows` in blocks, `(B, count, tokens, K, N / K, V)`."""
        shape = -1, self.heads, self.count, *attended.shape[1:]
        return tf.transpose(tf.reshape(attended, shape), (0, 2, 3, 1, 4, 5))

    def with_all_seeing(self, output, query, key, value, key_mask):
        """Replaces the output of the blocks that see all keys."""
        of_all = tf.gather(self.cut(query), self.all_seeing, axis=1)
        number = self.all_seeing.shape[0]
        rows = tf.reshape(of_all, (-1, number * self.tokens, *query.shape[2:]))
        rows = attend_to_seen(rows, key, value, key_mask[:, tf.newaxis])
        rows = tf.reshape(rows, (-1, number, *output.shape[2:]))
        own = tf.range(self.count)[:, tf.newaxis] == self.all_seeing
        sees_all = tf.reshape(tf.reduce_any(own, -1), (-1, 1, 1, 1, 1))
        place = tf.argmax(tf.cast(own, tf.int32), -1)
        return tf.where(sees_all, tf.gather(rows, place, axis=1), output)


class SavedSeed(KeepsWithoutEntry, keras.layers.Layer):
    """Saves a seed as a weight, so that a loaded model samples the same numbers."""

    def __init__(self, seed, name):
        super().__init__(name=name)
        self.first_seed = seed

    def build(self, input_shape=None):
        first = keras.initializers.Constant(seed_or_random(self.first_seed))
        self.seed = full_weight(self, "seed", (), first, dtype="int32", trainable=False)


@keras.saving.register_keras_serializable(package="keras_performer")
class BigBirdAttention(AttentionLayer):
    """Big Bird attention to near, global and random blocks, linear in the length.

    The layer cuts tokens into blocks; the last block may be shorter. Each block sees
    itself, its neighbours, the global blocks and random other blocks, each once, in one
    softmax. If there are too few other blocks, it sees all of them. Global blocks are
    taken in turn from the start and the end, and see all blocks. This is the ITC
    variant of the paper, without extra tokens.

    If causal, a token sees no later token: it sees its own block up to itself, the
    previous block, the first blocks as global ones, and random earlier blocks. The
    paper has no causal form.

    Random blocks depend on the number of blocks, the key-value head and a seed, the
    weight `random_blocks_seed`. They are the same in training and inference, on every
    machine and after loading.

    Masked keys have no weight, but their positions count: more padding makes more
    blocks, other random blocks and another last block. Always pad to one length.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        seed: int, seeds dropout and the random blocks. With `None` the layer chooses a
            seed for the blocks when it is built and saves it with the weights. Defaults
            to `None`.
        block_size: int, tokens of a block. The paper's models use this default and the
            next two. Defaults to `64`.
        num_global_blocks: int, number of blocks that see all blocks and are seen by
            all. Defaults to `2`.
        num_random_blocks: int, number of random blocks that a block sees. Defaults to
            `3`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`.

    Raises:
        ValueError: if query and key have different lengths, and as in `AttentionLayer`.

    Reference:
        Zaheer et al. 2020, Big Bird, arXiv 2007.14062, section 2 and appendix D.

    Example:

    >>> layer = BigBirdAttention(num_heads=2, key_dim=8, block_size=8)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_cross_attention = False
    cost = "L"

    def __init__(
        self,
        *args: typing.Any,
        block_size: int = 64,
        num_global_blocks: int = 2,
        num_random_blocks: int = 3,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.block_size = arguments.positive_int("block_size", block_size)
        self.num_global_blocks = arguments.count("num_global_blocks", num_global_blocks)
        self.num_random_blocks = arguments.count("num_random_blocks", num_random_blocks)

    def build_attention(self):
        self._random_blocks = SavedSeed(self.seed, name="random_blocks")
        self._random_blocks.build()

    @property
    def random_blocks_seed(self):
        """The seed of the random blocks, an int32 weight."""
        return self._random_blocks.seed

    def seen_blocks(self, length: int | tf.Tensor, causal: bool) -> SeenBlocks:
        """Returns the blocks that each block sees.

        Args:
            length: int or scalar tensor, tokens of a sequence.
            causal: bool, hide later tokens.
        """
        return big_bird_blocks(
            Blocks(length, self.block_size).count,
            self.num_key_value_heads,
            self.num_global_blocks,
            self.num_random_blocks,
            tf.convert_to_tensor(self.random_blocks_seed),
            causal,
        )

    def attend(self, query, key, value, visible, state=None, training=None):
        blocks = self.seen_blocks(size(query, 1), visible.causal)
        attended = block_sparse_attention(
            query, key, value, blocks, self.block_size, visible
        )
        return attended, None
