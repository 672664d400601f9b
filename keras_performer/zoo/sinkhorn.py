"""Sinkhorn attention: each block sees itself and one block that is sorted to it."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.call_inputs import check_equal
from keras_performer.layers.dense import full_weight
from keras_performer.ops import checks
from keras_performer.ops.blocks import Blocks
from keras_performer.ops.shapes import ceil_div, compute_dtype, size
from keras_performer.ops.visibility import mask_or_all, without_hidden

# The logarithm of what is hidden; not -inf, whose differences are NaN.
HIDDEN = -1e30


def block_sums(key, block_size, visible):
    """Sums of the visible keys `(B, S, K, H)` of blocks, `(B, blocks, K, H)`.

    If causal, the sums of all keys up to the first of a block, because its first query
    may see no more.
    """
    blocks = _blocks(key, block_size)
    seen = _seen(key, blocks, visible)
    keys = blocks.cut(tf.cast(key, compute_dtype(key)))
    keys = without_hidden(keys, seen)
    sums = tf.reduce_sum(keys, 2)
    if visible.causal:
        sums = tf.cumsum(sums, 1, exclusive=True) + keys[:, :, 0]
    return sums


def balanced(logits, num_iterations, seen, causal=False):
    """Logarithms of a soft permutation: rows and columns add up to 1, by turns.

    Columns are normalized over all rows, or if causal over rows up to the own: row i
    then depends on rows 0 to i only, and has only columns before i. Rows are normalized
    last. A block without visible keys is in no row; unless causal its own row is a
    softmax, and does not count in columns.

    Args:
        logits: tensor of shape `(B, K, blocks, blocks)`, the shape of the result, which
            is `HIDDEN` for columns that a row does not have.
        num_iterations: int, how often rows and columns are normalized before. If
            causal, many iterations lead to the previous block: no other triangle has
            rows and columns that all add up to 1.
        seen: bool tensor `(B, blocks)`, whether a block has visible keys.
        causal: bool.

    Reference:
        Tay et al. 2020, Sparse Sinkhorn Attention, arXiv 2002.11296, sections 3.1.1 and
        3.3.
    """
    hidden = tf.constant(HIDDEN, logits.dtype)
    columns, rows = seen[:, tf.newaxis, tf.newaxis], seen[:, tf.newaxis, :, tf.newaxis]
    if causal:
        place = tf.range(size(seen, 1))
        columns = tf.logical_and(columns, place[:, tf.newaxis] > place)

    def less(x, totals):
        return tf.where(columns, x - totals, hidden)

    def less_rows(x):
        return less(x, tf.reduce_logsumexp(x, -1, keepdims=True))

    x = tf.where(columns, logits, hidden)
    for _ in range(num_iterations):
        x = less_rows(x)
        if causal:
            x = less(x, tf.math.cumulative_logsumexp(x, -2))
        else:
            counted = tf.where(rows, x, hidden)
            totals = tf.reduce_logsumexp(counted, -2, keepdims=True)
            x = tf.where(rows, less(x, totals), x)
    return less_rows(x)


class _Sorted:
    """Weights of the keys of the own and of the sorted block, in one softmax.

    Position s of the block that is sorted to block i holds the average of the visible
    keys and values at position s of all blocks, weighted by row i of the permutation P,
    whose logits are `(B, K, blocks, blocks)`:

        c_is = sum_j P_ij visible_js
        key_is = sum_j P_ij visible_js key_js / c_is, and the same for values

    Its weight in the softmax is multiplied by `c_is`, the part of P that belongs to
    visible keys, so hidden keys count for nothing.

    Inside, keys and values are `(B, blocks, K, tokens, dim)`, and queries so with the
    rows of the query heads that share a key, `N / K * tokens`. One-letter names of
    einsums: i, j blocks, r the row of a query, s the place of a key, k key-value heads.

    Reference:
        Tay et al. 2020, Sparse Sinkhorn Attention, arXiv 2002.11296, section 3.2.
    """

    def __init__(self, query, key, logits, block_size, visible, num_iterations):
        checks.check_window("block_size", block_size, query, key)
        message = "block_size needs one key for each query: their lengths differ"
        same = check_equal(size(query, 1), size(key, 1), message)
        with tf.control_dependencies(same):
            query = tf.identity(query)
        self.like, self.dtype = query, compute_dtype(query)
        self.heads, self.group = key.shape[2], query.shape[2] // key.shape[2]
        self.blocks = _blocks(key, block_size)
        seen = _seen(key, self.blocks, visible)
        some = tf.reduce_any(seen, 2)
        self.seen = seen[:, :, tf.newaxis]  # (B, blocks, 1, tokens)
        permutation = balanced(logits, num_iterations, some, visible.causal)
        self.permutation = tf.exp(tf.cast(permutation, self.dtype))
        # c of the docstring, (B, blocks, K, tokens)
        shown = tf.cast(seen, self.dtype)
        share = tf.einsum("bkij,bjs->biks", self.permutation, shown)
        found = share > 0
        self.share = tf.where(found, share, tf.ones_like(share))
        rows, keys = self._rows(query), self._keys(key)
        own = tf.matmul(rows, keys, transpose_b=True)
        far = tf.matmul(rows, self._sorted(keys), transpose_b=True)
        far += tf.math.log(self.share)[..., tf.newaxis, :]
        own_seen, far_seen = self.seen[..., tf.newaxis, :], found[..., tf.newaxis, :]
        if visible.causal:
            place = tf.range(self.blocks.tokens)
            earlier = tf.tile(place, [self.group])[:, tf.newaxis] >= place
            own_seen = tf.logical_and(own_seen, earlier)
        seen = [tf.broadcast_to(x, tf.shape(own)) for x in (own_seen, far_seen)]
        seen, zero = tf.concat(seen, -1), tf.zeros((), self.dtype)
        weights = tf.where(seen, tf.concat([own, far], -1), HIDDEN + zero)
        weights = tf.where(seen, tf.nn.softmax(weights), zero)
        self.own, self.far = tf.split(weights, 2, -1)

    def of_values(self, value):
        """Attended values `(B, T, N, V)`; 0 where no key is visible."""
        values = self._keys(value)
        attended = tf.matmul(self.own, values)
        attended += tf.matmul(self.far, self._sorted(values))
        sizes = self.heads, self.group, self.blocks.tokens, value.shape[3]
        attended = tf.reshape(attended, (-1, self.blocks.count, *sizes))
        attended = tf.transpose(attended, (0, 1, 4, 2, 3, 5))
        shape = size(value, 0), -1, self.heads * self.group, value.shape[3]
        attended = tf.reshape(attended, shape)[:, : size(value, 1)]
        return tf.cast(attended, self.like.dtype)

    def in_full(self):
        """The weights of keys in their original places, `(B, N, T, T)`."""
        same = tf.eye(self.blocks.count, dtype=self.dtype)
        full = tf.einsum("bikrs,ij->bkirjs", self.own, same)
        seen = tf.cast(self.seen[:, :, 0], self.dtype)
        far = self.far / self.share[..., tf.newaxis, :]
        full += tf.einsum("bikrs,bkij,bjs->bkirjs", far, self.permutation, seen)
        count, tokens = self.blocks.count, self.blocks.tokens
        shape = -1, self.heads, count, self.group, tokens, count * tokens
        full = tf.transpose(tf.reshape(full, shape), (0, 1, 3, 2, 4, 5))
        shape = -1, self.heads * self.group, count * tokens, count * tokens
        length = size(self.like, 1)
        full = tf.reshape(full, shape)[:, :, :length, :length]
        return tf.cast(full, self.like.dtype)

    def _rows(self, query):
        """Scaled queries of all heads that share a key."""
        dim = query.shape[3]
        x = self.blocks.cut(tf.cast(query, self.dtype) * dim**-0.5)
        shape = size(query, 0), self.blocks.count, self.blocks.tokens
        x = tf.reshape(x, (*shape, self.heads, self.group, dim))
        x = tf.transpose(x, (0, 1, 3, 4, 2, 5))
        rows = self.group * self.blocks.tokens
        return tf.reshape(x, (shape[0], shape[1], self.heads, rows, dim))

    def _keys(self, x):
        """Keys or values, zeros in the place of hidden ones."""
        x = tf.transpose(self.blocks.cut(tf.cast(x, self.dtype)), (0, 1, 3, 2, 4))
        return tf.where(self.seen[..., tf.newaxis], x, tf.zeros((), self.dtype))

    def _sorted(self, x):
        """The result of `_keys`, sorted."""
        x = tf.einsum("bkij,bjksv->biksv", self.permutation, x)
        return x / self.share[..., tf.newaxis]


def _blocks(key, block_size):
    """All of `block_size`, wherever the sequence ends."""
    return Blocks(size(key, 1), block_size, multiple=block_size)


def _seen(key, blocks, visible):
    """Visible keys in blocks, `(B, blocks, tokens)`; what pads the last is none."""
    return blocks.cut(mask_or_all(visible.key_mask, key))


@keras.saving.register_keras_serializable(package="keras_performer")
class SinkhornAttention(AttentionLayer):
    """Sinkhorn attention: each block sees itself and one block that is sorted to it.

    The sequence is cut into blocks of `block_size`. For each key-value head, the sum of
    the keys of block i and the weights W, `sort_kernel`, give row i of a matrix, which
    is balanced to a soft permutation P:

        R_ij = (sum_s key_is) . W_j / temperature
        P = exp(R), whose rows and columns are divided by their sums, by turns
        sorted_key_is = sum_j P_ij key_js, and the same for values

    Rows are divided last, half a step more than in the paper, so that sorted values are
    averages. A query of block i sees the keys of block i and those sorted to it, in one
    softmax. As in the paper, W has a column for each block position, so `max_length` is
    fixed.

    If causal, nothing later affects row i: a query sees no later key of its own block,
    P has only earlier blocks, R uses the keys up to the first of block i, and columns
    are divided by sums over rows up to i. The first block sees only itself.

    Masked keys keep their positions but count for nothing: sums leave them out, sorted
    keys are averages over visible keys at their place, and a sorted key counts by the
    part of P that belongs to visible keys. Blocks without visible keys are left out of
    P. So padding on the right changes nothing; padding on the left moves the blocks.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        block_size: int, tokens of a block. Time and memory are L^2 / block_size +
            L * block_size, least near the square root of the length L.
        max_length: int, the most tokens in a sequence.
        num_iterations: int, how often rows and columns are divided before the last
            division of rows. More iterations push a causal P towards the previous
            block, whatever R says. With 0, a row of P is a softmax. Defaults to `None`:
            0 if causal; otherwise 7, as in the public lucidrains/sinkhorn-transformer
            (with the temperature 0.75).
        temperature: float, smaller values make P harder. Defaults to `0.75`.
        noise: float, amount of Gumbel noise added to the logits in training, before
            they are divided by the temperature; 1 in the paper. Defaults to `0.0`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`. `return_attention_scores` gives the weights of keys in
    their original places, without noise.

    Raises:
        ValueError: if query and key have different lengths, if there are more than
            `max_length` tokens (`tf.errors.InvalidArgumentError` in graphs of unknown
            length), and as in `AttentionLayer`.

    Reference:
        Tay et al. 2020, Sparse Sinkhorn Attention, arXiv 2002.11296, section 3.

    Example:

    >>> layer = SinkhornAttention(2, key_dim=8, block_size=16, max_length=512)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_cross_attention = False
    cost = "L^2 / block_size + L block_size"
    config_names = "block_size", "max_length", "num_iterations", "temperature", "noise"

    def __init__(
        self,
        *args: typing.Any,
        block_size: int,
        max_length: int,
        num_iterations: int | None = None,
        temperature: float = 0.75,
        noise: float = 0.0,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.block_size = arguments.positive_int("block_size", block_size)
        self.max_length = arguments.positive_int("max_length", max_length)
        self.num_iterations = arguments.count(
            "num_iterations", num_iterations, or_none=True
        )
        self.temperature = arguments.nonnegative("temperature", temperature, zero=False)
        self.noise = arguments.nonnegative("noise", noise)

    def build_attention(self):
        blocks = ceil_div(self.max_length, self.block_size)
        # without bias: the logits of a column are divided by their sum
        shape = self.num_key_value_heads, self.key_dim, blocks
        # logits of independent keys begin with a variance of one
        deviation = (self.key_dim * self.block_size) ** -0.5
        normal = keras.initializers.RandomNormal(stddev=deviation)
        self.sort_kernel = full_weight(self, "sort_kernel", shape, normal)
        self.noise_seed = None
        if self.noise:
            self.noise_seed = keras.random.SeedGenerator(self.seed, name="noise_seed")

    def attend(self, query, key, value, visible, state=None, training=None):
        return self._sorted(query, key, visible, training).of_values(value), None

    def scores(self, query, key, visible):
        return self._sorted(query, key, visible).in_full()

    def _sorted(self, query, key, visible, training=False):
        num_iterations = self.num_iterations
        if num_iterations is None:
            num_iterations = 0 if visible.causal else 7
        logits = self._logits(key, visible, training)
        return _Sorted(query, key, logits, self.block_size, visible, num_iterations)

    def _logits(self, key, visible, training=False):
        """Logits that P is made from, `(B, K, blocks, blocks)`."""
        length = arguments.up_to_max_length(self, size(key, 1))
        sums = block_sums(key[:, :length], self.block_size, visible)
        kernel = tf.cast(tf.convert_to_tensor(self.sort_kernel), sums.dtype)
        logits = tf.einsum("bikh,khj->bkij", sums, kernel[..., : size(sums, 1)])
        if training and self.noise:
            uniform = keras.random.uniform(
                tf.shape(logits), 1e-7, 1.0, sums.dtype.name, self.noise_seed
            )
            logits -= self.noise * tf.math.log(-tf.math.log(uniform))
        return logits / self.temperature
