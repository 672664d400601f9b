"""Which blocks of tokens Big Bird's attention lets each block see.

The random ones come from numbers that depend on a seed, the head and the block alone,
by integer operations: TensorFlow's own random numbers are others where XLA compiles.
"""

import typing

import tensorflow as tf

from keras_performer.ops.tensors import TensorLike

# In a table of blocks, the place of none.
NONE = -1
# What no number of a block reaches.
BEYOND = 2**31 - 1


class SeenBlocks(typing.NamedTuple):
    """Which blocks of keys the blocks of queries see.

    Attributes:
        table: int32 tensor `(K, count, seen)`, for each key-value head and each block
            of queries the blocks of keys that it sees, none twice; -1 is none.
        all_seeing: int32 tensor `(count of such,)`, the blocks of queries that see all
            keys; one may stand there twice.
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
    """The blocks that Big Bird's attention lets each block see.

    These are its window, the block itself and one to each side; the global blocks,
    the first and last of all in turn, which also see all; and random ones of the
    others. Where there are not so many others, all are seen. If causal, none of them is
    later: the window is the block itself and the one before, the global blocks are the
    first ones, and random ones are drawn from earlier ones.

    Args:
        count: int or scalar tensor, how many blocks there are.
        num_heads: int K, key-value heads: each has random blocks of its own.
        num_global_blocks: int.
        num_random_blocks: int.
        seed: int32 scalar.
        causal: bool.

    Returns:
        `SeenBlocks`: a table of `3 + num_global_blocks + num_random_blocks` entries for
        each block, or one less if causal.

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
    # there may be fewer blocks than that
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
    # to see all that is earlier is what the first blocks do anyway
    return SeenBlocks(table, all_seeing[:0] if causal else all_seeing)


def _each_once(table):
    """A table `(count, seen)` without what stands there for the second time."""
    width = table.shape[-1]
    equal = table[..., tf.newaxis] == table[..., tf.newaxis, :]
    earlier = tf.range(width)[:, tf.newaxis] > tf.range(width)
    again = tf.reduce_any(tf.logical_and(equal, earlier), -1)
    return tf.where(again, NONE, table)


def _drawn_from_others(table, end, number):
    """A random one of the blocks before `end` that a table has not; `NONE` if there is
    no other.

    Args:
        table: int32 tensor `(K, count, seen)`, of blocks before the end.
        end: int, or int32 tensor that broadcasts to `(K, count, 1)`.
        number: float32 tensor `(K, count, 1)`, at least 0 and below 1.
    """
    taken = tf.sort(tf.where(table == NONE, BEYOND, table), -1)
    there = tf.cast(table != NONE, tf.int32)
    others = end - tf.reduce_sum(there, -1, keepdims=True)
    ordinal = tf.cast(number * tf.cast(others, number.dtype), tf.int32)
    ordinal = tf.minimum(ordinal, others - 1)
    # how many others there are before each that is taken
    before = taken - tf.range(table.shape[-1])
    skipped = tf.cast(before <= ordinal, tf.int32)
    drawn = ordinal + tf.reduce_sum(skipped, -1, keepdims=True)
    return tf.where(others > 0, drawn, NONE)


def _uniform(seed, shape):
    """Numbers of the range [0, 1), float32; each depends on its indices alone."""
    x = tf.cast(tf.convert_to_tensor(seed, tf.int32), tf.uint32)
    for size in shape:
        index = tf.cast(tf.range(1, size + 1), tf.uint32)
        # the golden ratio's, so that neighbours are far apart
        x = _scattered(x[..., tf.newaxis] + index * _bits(0x9E3779B9))
    # as many bits as float32 holds exactly
    bits = tf.cast(tf.bitwise.right_shift(x, _bits(8)), tf.float32)
    return bits * 2.0**-24


def _scattered(x):
    """A permutation of uint32: each bit depends on all.

    It is "lowbias32" of C. Wellons, prospecting for hash functions, 2018.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(x, _bits(shift))
        x = tf.bitwise.bitwise_xor(x, shifted) * _bits(factor)
    return x


def _bits(number):
    return tf.constant(number, tf.uint32)
