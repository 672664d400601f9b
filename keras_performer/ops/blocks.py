"""Sequences cut into blocks of tokens, and loops over the blocks.

Sizes are Python ints if they are static, otherwise scalar tensors.
"""

import typing

import tensorflow as tf

from keras_performer.ops.shapes import ceil_div, pad, size, sizes, slice_of


class Sizes(typing.NamedTuple):
    """Sizes of blocks. They affect results only by rounding.

    Attributes:
        features: int, elements of the features of one block, X * tokens * M.
        min_tokens, max_tokens: ints, the bounds of a block's tokens.
        batch: int, the batch size to assume if it is unknown.
        chunk: int, tokens of a chunk of causal attention. Per token, the products
            inside a chunk cost chunk * (M + V), the chunk states V * M / chunk.
        max_chunks: int, chunks of a block. Sums over them are unrolled: more chunks
            take longer to trace and to compile.
        weights: int, elements of the weights of one block of local attention.
    """

    features: int
    min_tokens: int
    max_tokens: int
    batch: int
    chunk: int
    max_chunks: int
    weights: int


# Features of 4 MB in float32 and weights of 2 MB stay in the cache of a core. Chunks of
# 64 tokens were fastest for head sizes 16, 32 and 64. For large batches, blocks of 128
# tokens are as fast as blocks of 64, with half as many operations. If the batch size is
# unknown, blocks for one sequence cost a batch of 32 little time; smaller blocks would
# cost one sequence much more.
ON_CPU = Sizes(2**20, 128, 1024, 1, 64, 8, 2**19)
# On a GPU, a causal block takes 90 kernels of a training step, so blocks are large.
# Pairs and chunk states together need the least memory with chunks of 128.
ON_GPU = Sizes(2**25, 256, 8192, 16, 128, 32, 2**23)
# Chunks are as wide as a TPU's matrix unit. No TPU was measured; the TPU compiler needs
# 9.6 GiB for the step of `tpu_configs/v5e-1.yaml`, and 13.6 GiB with ON_CPU.
ON_TPU = Sizes(2**22, 128, 1024, 16, 128, 8, 2**21)


def has_gpu() -> bool:
    """Returns True if TensorFlow has a GPU, which is then the default device."""
    return bool(tf.config.list_logical_devices("GPU"))


def has_tpu() -> bool:
    """Returns True if TensorFlow has a TPU."""
    return bool(tf.config.list_logical_devices("TPU"))


def block_sizes():
    """Returns the `Sizes` of the default device."""
    if has_gpu():
        return ON_GPU
    return ON_TPU if has_tpu() else ON_CPU


def tokens_per_block(x, num_features):
    """Returns the number of tokens in a block of x, `(B, T, heads, dim)`."""
    sizes = block_sizes()
    tokens = sizes.features // max(examples(x) * x.shape[2] * num_features, 1)
    return min(max(tokens, sizes.min_tokens), sizes.max_tokens)


def examples(x):
    """Returns the batch size, if it is unknown the one that `Sizes` assumes."""
    return block_sizes().batch if x.shape[0] is None else x.shape[0]


class Blocks:
    """A sequence cut into `count` blocks of `tokens` tokens each, the last padded.

    Args:
        length: int or scalar tensor, the length of the sequence.
        max_tokens: int, the most tokens in a block.
        multiple: int; `tokens` is rounded up to a multiple of it.
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
        """Cuts `(B, length, ...)` to `(B, count, tokens, ...)`, padded with zeros."""
        if self.padded:
            missing = self.count * self.tokens - self.length
            x = pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (len(x.shape) - 2))
        rest = [size(x, axis) for axis in range(2, len(x.shape))]
        return tf.reshape(x, [size(x, 0), self.count, self.tokens, *rest])

    def join(self, array, shape):
        """Joins an array of `(B, tokens, ...)` blocks to a tensor of static `shape`."""
        axes = range(3, len(shape) + 1)
        x = tf.transpose(array.stack(), (1, 0, 2, *axes))
        rest = [shape[axis - 1] or size(x, axis) for axis in axes]
        x = tf.reshape(x, [-1, self.count * self.tokens, *rest])
        if self.padded:
            x = x[:, : self.length]
        return tf.ensure_shape(x, shape)

    def join_like(self, array, x):
        """Joins an array of blocks of a gradient to the shape and dtype of x."""
        return tf.cast(self.join(array, x.shape), x.dtype)

    def join_in_turn(self, arrays, like):
        """Joins like `join_like`, one array at a time: only one is in memory twice."""
        joined = []
        for array, x in zip(arrays, like, strict=True):
            with tf.control_dependencies(joined[-1:]):
                joined.append(self.join_like(array, x))
        return joined

    def loop(self, body, state, reverse=False):
        """Runs `state = body(i, *state)` for every block; one block needs no loop.

        Args:
            body: function of an index and the state that returns the next state.
            state: sequence of nests of tensors.
            reverse: bool, whether to begin with the last block.
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
        """Returns a `tf.TensorArray` with an element for every block.

        XLA on CPUs copies a whole bfloat16 array whenever a block is written: a float32
        array, cast after joining, is faster.

        Args:
            dtype: of the array.
            shape: of an element, ints and scalar tensors. LiteRT needs it; omit it in
                loops that run only in training.
        """
        if shape is None:
            return tf.TensorArray(dtype, size=self.count)
        return new_array(dtype, self.count, shape)

    def block_shape(self, x, dim):
        """Returns the shape of a block of `(B, any, heads, any)` x with size `dim`."""
        return size(x, 0), self.tokens, x.shape[2], dim


class Halo:
    """The keys that blocks of queries read: their own, and a halo around them.

    Keys, values, gates and masks are tensors `(B, before + length, ...)`. Gradients of
    the keys in a halo pass from each block to the block before it.

    Args:
        blocks: `Blocks` of the queries.
        lead, trail: ints, numbers of keys that a block reads before and after its own.
        before: int, number of keys before the first query, at most `lead`.
    """

    def __init__(self, blocks, lead, trail, before):
        self.blocks, self.before = blocks, before
        self.size = lead + trail
        self._front = lead - before
        end = blocks.count * blocks.tokens - blocks.length + trail
        self.paddings = [[0, 0], [self._front, end]]

    def pad(self, x):
        """Pads keys for `read`; without a halo cuts them into blocks."""
        if not self.size:
            return self.blocks.cut(x)
        return pad(x, [*self.paddings, *[[0, 0]] * (len(x.shape) - 2)])

    def read(self, x, i):
        """Returns the keys that block i reads, `(B, size + tokens, ...)`."""
        if not self.size:
            return block_of(x, i)
        return slice_of(x, i * self.blocks.tokens, self.size + self.blocks.tokens)

    def gradients(self, step, state, queries, keys, dtype):
        """Computes gradients in a loop from the last block to the first.

        Args:
            step: function `(i, *state)` that returns `(dqueries, dkeys, state)`:
                gradients of the queries of block i, and of the keys that it reads,
                lists of tensors `(B, tokens, ...)` and `(B, size + tokens, ...)`.
            state: tuple of nests of tensors.
            queries, keys: lists of tensors `(B, length, ...)` and `(B, before + length,
                ...)`.
            dtype: of the gradients in the loop.

        Returns:
            `(dqueries, dkeys, state)`: lists of the gradients of all queries and keys,
            and the state after the loop.
        """
        tokens, later = self.blocks.tokens, ()
        own = [[0, 0], [tokens, 0], [0, 0], [0, 0]]
        if self.size:
            # of the last `size` keys that a block reads, from the block after it
            shapes = [(size(x, 0), self.size, *sizes(x)[2:]) for x in keys]
            later = tuple(tf.zeros(shape, dtype) for shape in shapes)

        def body(i, state, later, arrays):
            dqueries, dkeys, state = step(i, *state)
            if self.size:
                dkeys = [x + tf.pad(y, own) for x, y in zip(dkeys, later)]
                parts = (tf.split(x, [self.size, tokens], 1) for x in dkeys)
                earlier, dkeys = zip(*parts)
                later = shaped(earlier, later)
            written = zip(arrays, [*dqueries, *dkeys])
            return state, later, [z.write(i, x) for z, x in written]

        like = [*queries, *(x[:, self.before :] if self.before else x for x in keys)]
        arrays = [self.blocks.array(dtype) for _ in like]
        start = state, later, arrays
        state, later, arrays = self.blocks.loop(body, start, reverse=True)
        found = self.blocks.join_in_turn(arrays, like)
        dqueries, dkeys = found[: len(queries)], found[len(queries) :]
        if self._front != self.size:
            count = self.before + self.blocks.length
            dkeys = [
                tf.concat([tf.cast(y[:, self._front :], x.dtype), x], 1)[:, :count]
                for x, y in zip(dkeys, later)
            ]
        return dqueries, dkeys, state


def block_of(x, i):
    """Returns block i of `(B, count, ...)`, without a copy if count is 1."""
    if x.shape[1] == 1:
        return tf.squeeze(x, 1)
    return tf.gather(x, i, axis=1)  # takes the fewest operations


def shaped(tensors, like):
    """Gives tensors the static shapes of the loop's inputs, which must not change."""
    for x, y in zip(tensors, like):
        x.set_shape(y.shape)
    return tuple(tensors)


def new_array(dtype, count, shape):
    """Returns a `tf.TensorArray` whose element shape is known before the first write.

    TensorFlow alone could infer the shape from the first write. LiteRT converts an
    array to one tensor, and needs the shape when it creates the array. `tf.TensorArray`
    takes only static shapes: for others, this function makes the list that it wraps.

    Args:
        dtype: of the elements.
        count: int or scalar tensor, number of elements.
        shape: of an element, ints and scalar tensors.
    """
    if tf.executing_eagerly() or all(isinstance(size, int) for size in shape):
        return tf.TensorArray(dtype, count, element_shape=shape)
    reserved = tf.raw_ops.TensorListReserve(
        element_shape=tf.stack(shape), num_elements=count, element_dtype=dtype
    )
    return tf.TensorArray(dtype, flow=reserved)
