"""Sequences cut into blocks of tokens, and loops over them.

Inside a loop a block is `(X, rows, dim)`: X = batch size times key-value heads, and
rows are tokens, or for queries tokens times the query heads that share a key-value
head. Sizes are Python ints where they are known and scalar tensors where not.
"""

import tensorflow as tf

# Features of one block, X * tokens * M: 4 MB in float32, so that they stay in cache.
BLOCK_ELEMENTS = 2**20
MIN_BLOCK_TOKENS = 64
MAX_BLOCK_TOKENS = 512


def size(x, axis):
    """The length of an axis: an int where it is known, else a scalar tensor."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def ceil_div(a, b):
    return -(-a // b)


def tokens_per_block(x, num_features):
    """How many tokens `(B, T, heads, dim)` x gives to a block."""
    if x.shape[0] is None:
        return MIN_BLOCK_TOKENS
    tokens = BLOCK_ELEMENTS // max(x.shape[0] * x.shape[2] * num_features, 1)
    return min(max(tokens, MIN_BLOCK_TOKENS), MAX_BLOCK_TOKENS)


class Blocks:
    """How a sequence is cut: `count` blocks of `tokens`, all equal, the last padded.

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
            x = tf.pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (len(x.shape) - 2))
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
        axes = range(3, len(shape) + 1)
        x = tf.transpose(array.stack(), (1, 0, 2, *axes))
        rest = [shape[axis - 1] or size(x, axis) for axis in axes]
        x = tf.reshape(x, [-1, self.count * self.tokens, *rest])
        if self.padded:
            x = x[:, : self.length]
        return tf.ensure_shape(x, shape)

    def join_like(self, array, x):
        """An array of blocks of the gradient of x as a tensor like x."""
        return tf.cast(self.join(array, x.shape), x.dtype)

    def loop(self, body, state, reverse=False, runs=True):
        """Runs `state = body(i, *state)` for every block; one block needs no loop.

        Of several, none if the scalar `runs` is false.
        """
        state = tuple(state)
        if not self.many:
            return body(0, *state)
        count = self.count if runs is True else tf.where(runs, self.count, 0)

        def step(i, *state):
            return (i + 1, *body(self.count - 1 - i if reverse else i, *state))

        start = tf.constant(0)
        return tf.while_loop(
            lambda i, *_: i < count, step, (start, *state), parallel_iterations=1
        )[1:]

    def array(self, dtype):
        """An array with a place for every block.

        XLA on CPUs copies the whole of a bfloat16 array whenever a block is written:
        there float32, and a cast of what is joined, is faster.
        """
        return tf.TensorArray(dtype, size=self.count)


class Heads:
    """How heads become rows: query heads that share a key-value head stand together.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, S, K, V)`.
    """

    def __init__(self, query, key, value):
        self.dtype = compute_dtype(query, key, value)
        self.num_key_value_heads = key.shape[2]
        self.group = query.shape[2] // key.shape[2]

    def query_rows(self, x, i):
        """Block i of `(B, count, tokens, N, dim)` as `(X, tokens * N / K, dim)`."""
        if self.group == 1:
            return self.key_rows(x, i)
        tokens, dim = size(x, 2), size(x, 4)
        x = tf.cast(block(x, i), self.dtype)
        x = tf.reshape(x, (-1, tokens, self.num_key_value_heads, self.group, dim))
        x = tf.transpose(x, (0, 2, 1, 3, 4))
        return tf.reshape(x, (-1, tokens * self.group, dim))

    def key_rows(self, x, i):
        """Block i of `(B, count, tokens, K, dim)` as `(X, tokens, dim)`."""
        tokens, dim = size(x, 2), size(x, 4)
        x = tf.transpose(tf.cast(block(x, i), self.dtype), (0, 2, 1, 3))
        return tf.reshape(x, (-1, tokens, dim))

    def mask_rows(self, mask, i):
        """Block i of a mask `(B, count, tokens)` as `(X, tokens, 1)`; `None` stays."""
        if mask is None:
            return None
        return tf.repeat(mask[:, i], self.num_key_value_heads, axis=0)[..., tf.newaxis]

    def query_block(self, x):
        """The inverse of `query_rows`: one `(B, tokens, N, dim)` block."""
        if self.group == 1:
            return self.key_block(x)
        tokens, dim = size(x, 1) // self.group, size(x, 2)
        x = tf.reshape(x, (-1, self.num_key_value_heads, tokens, self.group, dim))
        x = tf.transpose(x, (0, 2, 1, 3, 4))
        return tf.reshape(x, (-1, tokens, self.num_key_value_heads * self.group, dim))

    def key_block(self, x):
        """The inverse of `key_rows`: one `(B, tokens, K, dim)` block."""
        tokens, dim = size(x, 1), size(x, 2)
        x = tf.reshape(x, (-1, self.num_key_value_heads, tokens, dim))
        return tf.transpose(x, (0, 2, 1, 3))

    def state_rows(self, state):
        """A state of the kernel with batch and heads as one axis."""
        r, sums = state
        features, rows = r.shape[-1], size(sums, -2)
        return (
            tf.reshape(tf.cast(r, self.dtype), (-1, 1, features)),
            tf.reshape(tf.cast(sums, self.dtype), (-1, rows, features)),
        )

    def state(self, r, sums):
        """The inverse of `state_rows`."""
        features, rows = r.shape[-1], size(sums, -2)
        return (
            tf.reshape(r, (-1, self.num_key_value_heads, features)),
            tf.reshape(sums, (-1, self.num_key_value_heads, rows, features)),
        )


def block(x, i):
    """Block i of `(B, count, ...)`, without a copy if there is one, or one example."""
    if x.shape[1] == 1:
        return tf.squeeze(x, 1)
    if x.shape[0] == 1:
        return x[0][i][tf.newaxis]
    return x[:, i]


def with_ones(x):
    """Values with a column of ones, whose weighted sum is the normalizer."""
    return tf.concat([x, tf.ones_like(x[..., :1])], -1)


def with_normalizer_gradient(doutput, output):
    """The gradient of `normalize` with respect to its input, times the normalizer."""
    return tf.concat([doutput, -tf.reduce_sum(doutput * output, -1, keepdims=True)], -1)


def normalize(sums):
    """Divides `(..., V + 1)` by its last column; rows of zeros stay zeros."""
    return tf.math.divide_no_nan(sums[..., :-1], sums[..., -1:])


def compute_dtype(*tensors):
    """Sums over a sequence are float32, or float64 if any input is."""
    return tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32
