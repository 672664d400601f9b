"""Sequences cut into blocks of tokens, and loops over them.

Sizes are Python ints where they are known and scalar tensors where not.
"""

import copy
import typing

import tensorflow as tf

from keras_performer.ops.shapes import ceil_div, pad, size


class Sizes(typing.NamedTuple):
    """Sizes of blocks; results do not depend on them, but for rounding.

    Attributes:
        features: int, numbers in the features of one block, X * tokens * M.
        min_tokens, max_tokens: ints, the bounds of a block's tokens.
        batch: int, the batch that local attention expects where it is not known.
        any_batch_tokens: int, tokens of a block of features there.
        chunk: int, tokens of a chunk of causal attention. The products inside a chunk
            cost chunk * (M + V) a token, the chunk states V * M / chunk.
        weights: int, numbers in the weights of one block of local attention.
    """

    features: int
    min_tokens: int
    max_tokens: int
    batch: int
    any_batch_tokens: int
    chunk: int
    weights: int


# Features of 4 MB in float32 and weights of 2 MB stay in the cache of a core. Chunks of
# 64 measured fastest for M = 256, V = 64. Blocks of 128 tokens of large batches are as
# fast as those of 64, and half as many operations.
ON_CPU = Sizes(2**20, 128, 512, 1, 64, 64, 2**19)
# A block of a training step costs a GPU some 70 us, causal 130, however small it is:
# `benchmarks/gpu`.
ON_GPU = Sizes(2**24, 256, 8192, 16, 1024, 256, 2**23)
# Chunks as wide as a TPU's matrix unit. No TPU was measured. Its compiler gives the
# step of `tpu_configs/v5e-1.yaml` 9.6 GiB with these, 13.6 with the sizes of CPUs.
ON_TPU = Sizes(2**22, 128, 1024, 16, 256, 128, 2**21)


def has_gpu() -> bool:
    """True if TensorFlow has a GPU, on which it then puts what can be there."""
    return bool(tf.config.list_logical_devices("GPU"))


def has_tpu() -> bool:
    """True if TensorFlow has a TPU."""
    return bool(tf.config.list_logical_devices("TPU"))


def block_sizes():
    if has_gpu():
        return ON_GPU
    return ON_TPU if has_tpu() else ON_CPU


def tokens_per_block(x, num_features):
    """Number of tokens of `(B, T, heads, dim)` x in a block."""
    sizes = block_sizes()
    if x.shape[0] is None:
        return sizes.any_batch_tokens
    tokens = sizes.features // max(x.shape[0] * x.shape[2] * num_features, 1)
    return min(max(tokens, sizes.min_tokens), sizes.max_tokens)


class Blocks:
    """A sequence cut into `count` blocks of `tokens`, all equal, the last padded.

    Args:
        length: int or scalar tensor, the length of the sequence.
        max_tokens: int, the most tokens in a block.
        multiple: int, blocks are a multiple of this many tokens.
    """

    def __init__(self, length, max_tokens, multiple=1):
        nonempty = max(length, 1) if isinstance(length, int) else tf.maximum(length, 1)
        self.length = length
        self.count = ceil_div(nonempty, max_tokens)
        self.tokens = ceil_div(nonempty, self.count * multiple) * multiple
        static = isinstance(length, int)
        self.padded = not (static and self.count * self.tokens == length)
        self.many = not (static and self.count == 1)

    def cut(self, x):
        """`(B, length, ...)` to `(B, count, tokens, ...)`, padded with zeros."""
        if self.padded:
            missing = self.count * self.tokens - self.length
            x = pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (len(x.shape) - 2))
        rest = [size(x, axis) for axis in range(2, len(x.shape))]
        return tf.reshape(x, [size(x, 0), self.count, self.tokens, *rest])

    def cut_mask(self, mask, batch_size):
        """A mask `(B, length)` or `None` to one of the blocks, `None` if all true."""
        if mask is None:
            if not self.padded:
                return None
            mask = tf.ones((batch_size, self.length), tf.bool)
        return self.cut(mask)

    def join(self, array, shape):
        """An array of `(B, tokens, ...)` blocks as one tensor of static `shape`."""
        return self.join_blocks(array.stack(), shape)

    def join_blocks(self, x, shape):
        """`(count, B, tokens, ...)` blocks as one tensor of static `shape`."""
        axes = range(3, len(shape) + 1)
        x = tf.transpose(x, (1, 0, 2, *axes))
        rest = [shape[axis - 1] or size(x, axis) for axis in axes]
        x = tf.reshape(x, [-1, self.count * self.tokens, *rest])
        if self.padded:
            x = x[:, : self.length]
        return tf.ensure_shape(x, shape)

    def join_like(self, array, x):
        """An array of blocks of the gradient of x as a tensor like x."""
        return tf.cast(self.join(array, x.shape), x.dtype)

    def join_in_turn(self, arrays, like):
        """`join_like` of several arrays, of which one at a time is there twice."""
        joined = []
        for array, x in zip(arrays, like, strict=True):
            with tf.control_dependencies(joined[-1:]):
                joined.append(self.join_like(array, x))
        return joined

    def loop(self, body, state, reverse=False):
        """Runs `state = body(i, *state)` for every block; one block needs no loop.

        Args:
            body: function of an index and tensors.
            state: nest of what it takes and returns.
            reverse: bool, whether the last block is the first.
        """
        state = tuple(state)
        if not self.many:
            return body(0, *state)

        def step(i, *state):
            return (i + 1, *body(self.count - 1 - i if reverse else i, *state))

        start = tf.constant(0)
        return tf.while_loop(
            lambda i, *_: i < self.count,
            step,
            (start, *state),
            parallel_iterations=1,
        )[1:]

    def array(self, dtype, shape=None):
        """An array with a place for every block.

        XLA on CPUs copies the whole of a bfloat16 array whenever a block is written:
        there float32, and a cast of what is joined, is faster.

        Args:
            dtype: of the array.
            shape: of what is written, ints and scalar tensors. LiteRT needs it: leave
                it out of loops that only training runs.
        """
        if shape is None:
            return tf.TensorArray(dtype, size=self.count)
        return new_array(dtype, self.count, shape)

    def block_shape(self, x, dim):
        """The shape of a block of `(B, any, heads, any)` x with so many numbers."""
        return size(x, 0), self.tokens, x.shape[2], dim

    def filled(self, x, dim, dtype, value=0.0):
        """An array of the blocks of `(B, length, heads, dim)`, all of one number.

        It needs the memory of one block. The parts of one tensor would keep the whole
        of it as long as one is left.

        Args:
            x: tensor `(B, any, heads, any)`, whose batch size and heads count.
            dim: int.
            dtype: of the array.
            value: float.
        """
        shape = self.block_shape(x, dim)
        block = tf.fill(shape, tf.constant(value, dtype))
        return tf.while_loop(
            lambda i, _: i < self.count,
            lambda i, array: (i + 1, array.write(i, block)),
            (tf.constant(0), self.array(dtype, shape)),
        )[1]

    def after(self, count):
        """Returns these blocks with `count` more of the same length before them."""
        blocks = copy.copy(self)
        blocks.count += count
        blocks.length += count * self.tokens
        return blocks


def new_array(dtype, count, shape):
    """A `tf.TensorArray` that knows what it will hold before anything is written.

    TensorFlow would learn it from the first write. LiteRT makes one tensor of an array,
    and needs its shape where it is made. The class takes static shapes alone: for
    others the list that it wraps is made here.

    Args:
        dtype: of the elements.
        count: int or scalar tensor, how many there are.
        shape: of each, ints and scalar tensors.
    """
    if tf.executing_eagerly() or all(isinstance(size, int) for size in shape):
        return tf.TensorArray(dtype, count, element_shape=shape)
    reserved = tf.raw_ops.TensorListReserve(
        element_shape=tf.stack(shape), num_elements=count, element_dtype=dtype
    )
    return tf.TensorArray(dtype, flow=reserved)
