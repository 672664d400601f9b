"""Sinkhorn attention: each block sees itself and one block of sorted keys."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.dense import full_weight
from keras_performer.ops.blocks import Blocks
from keras_performer.ops.shapes import ceil_div, compute_dtype, size
from keras_performer.ops.visibility import mask_or_all, without_hidden

# Logarithm of hidden entries; not -inf, because differences of -inf are NaN.
HIDDEN = -1e30


def block_sums(key, blocks, seen, causal):
    """Sums visible keys `(B, S, K, H)` over each block: `(B, blocks, K, H)`.

    If causal, sums all keys up to the first key of a block, because the first query of
    the block sees no later key.
    """
    keys = without_hidden(blocks.cut(tf.cast(key, compute_dtype(key))), seen)
    sums = tf.reduce_sum(keys, 2)
    if causal:
        sums = tf.cumsum(sums, 1, exclusive=True) + keys[:, :, 0]
    return sums


def balanced(logits, num_iterations, seen, causal=False):
    """Normalizes rows and columns in turn to the logarithms of a soft permutation.

    The columns are normalized over all rows. If causal, row i has only columns before
    i, which are normalized over rows 0 to i. Rows are normalized last. Rows leave out
    the columns of blocks without visible keys. If not causal, the row of such a block
    is a softmax, and does not count when columns are normalized.

    Logits and result are `(B, K, blocks, blocks)`; the result is `HIDDEN` for columns
    that a row does not have. `seen`, bool `(B, blocks)`, is true for blocks with
    visible keys. If causal, many iterations lead to the previous block: no other
    triangular matrix has rows and columns that all add up to 1.

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


def attend_to_sorted(query, key, value, permutation, blocks, seen, causal):
    """Attends to keys of a query's own block and to its sorted keys, in one softmax.

    Block i sees one block of sorted keys and values. Its position s holds the average
    of visible keys and values at position s of all blocks, weighted by row i of the
    permutation P, `(B, K, blocks, blocks)`; `seen` is `(B, blocks, tokens)`:

        c_is = sum_j P_ij seen_js
        key_is = sum_j P_ij seen_js key_js / c_is, and the same for values

    The softmax multiplies the weight of `key_is` by `c_is`, the part of P that belongs
    to visible keys, so hidden keys have no weight. Returns `(B, T, N, V)`; 0 where no
    key is visible.

    Inside, keys and values are `(B, blocks, K, tokens, dim)`. Queries have
    `N / K * tokens` rows in place of `tokens`, from all heads that share a key-value
    head. Letters of einsums: i, j blocks, r the row of a query, s the position of a key
    in its block, k key-value heads.

    Reference:
        Tay et al. 2020, Sparse Sinkhorn Attention, arXiv 2002.11296, section 3.2.
    """
    dtype, tokens = permutation.dtype, blocks.tokens
    heads, group = key.shape[2], query.shape[2] // key.shape[2]
    share = tf.einsum("bkij,bjs->biks", permutation, tf.cast(seen, dtype))
    found = share > 0
    share = tf.where(found, share, tf.ones_like(share))[..., tf.newaxis]

    def in_blocks(x):
        x = tf.transpose(blocks.cut(tf.cast(x, dtype)), (0, 1, 3, 2, 4))
        x = tf.where(seen[:, :, tf.newaxis, :, tf.newaxis], x, tf.zeros((), dtype))
        return x, tf.einsum("bkij,bjksv->biksv", permutation, x) / share

    dim = query.shape[3]
    rows = blocks.cut(tf.cast(query, dtype) * dim**-0.5)
    shape = size(query, 0), blocks.count
    rows = tf.reshape(rows, (*shape, tokens, heads, group, dim))
    rows = tf.transpose(rows, (0, 1, 3, 4, 2, 5))
    rows = tf.reshape(rows, (*shape, heads, group * tokens, dim))
    keys, sorted_keys = in_blocks(key)
    own = tf.matmul(rows, keys, transpose_b=True)
    far = tf.matmul(rows, sorted_keys, transpose_b=True)
    far += tf.linalg.matrix_transpose(tf.math.log(share))
    own_seen = seen[:, :, tf.newaxis, tf.newaxis]
    if causal:
        place = tf.range(tokens)
        earlier = tf.tile(place, [group])[:, tf.newaxis] >= place
        own_seen = tf.logical_and(own_seen, earlier)
    both = own_seen, found[..., tf.newaxis, :]
    both = tf.concat([tf.broadcast_to(x, tf.shape(own)) for x in both], -1)
    weights = tf.where(both, tf.concat([own, far], -1), tf.constant(HIDDEN, dtype))
    weights = tf.where(both, tf.nn.softmax(weights), tf.zeros((), dtype))
    own, far = tf.split(weights, 2, -1)
    values, sorted_values = in_blocks(value)
    attended = tf.matmul(own, values) + tf.matmul(far, sorted_values)
    dim = size(value, 3)
    attended = tf.reshape(attended, (-1, blocks.count, heads, group, tokens, dim))
    attended = tf.transpose(attended, (0, 1, 4, 2, 3, 5))
    attended = tf.reshape(attended, (shape[0], -1, heads * group, dim))
    return attended[:, : size(value, 1)]


@keras.saving.register_keras_serializable(package="keras_performer")
class SinkhornAttention(AttentionLayer):
    """Sinkhorn attention: each block sees itself and one block of sorted keys.

    The sequence is cut into blocks of `block_size`. For each key-value head, the sum of
    the keys of block i and the weight W, `sort_kernel`, give row i of a matrix R, which
    is balanced to a soft permutation P:

        R_ij = (sum_s key_is) . W_j / temperature
        P = exp(R), with rows and columns divided by their sums in turn
        sorted_key_is = sum_j P_ij key_js, and the same for values

    Rows are divided last, half a step more than in the paper, so that sorted values are
    averages. A query of block i sees the keys and the sorted keys of block i in one
    softmax. As in the paper, W has a column for each block position, so `max_length` is
    fixed.

    If causal, no later token affects row i: a query sees no later key of its own block,
    row i of P has only earlier blocks, row i of R sums the keys up to the first key of
    block i, and columns are divided by sums over rows up to i. The first block sees
    only itself.

    Masked keys keep their positions but have no weight: sums leave them out, sorted
    keys are averages of visible keys, and the weight of a sorted key is multiplied by
    the part of P that belongs to visible keys. P leaves out blocks without visible
    keys. Padding on the right changes nothing; padding on the left moves the blocks.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        block_size: int, tokens of a block. Time and memory grow with L^2 / block_size +
            L * block_size; the best size is near the square root of the length L.
        max_length: int, maximal number of tokens in a sequence.
        num_iterations: int, how often rows and columns are divided before the last
            division of rows. More iterations push a causal P towards the previous
            block, for any R. With 0, a row of P is a softmax. Defaults to `None`:
            0 if causal; otherwise 7, as in the public lucidrains/sinkhorn-transformer
            (with the temperature 0.75).
        temperature: float, smaller values make P harder. Defaults to `0.75`.
        noise: float, factor of the Gumbel noise that training adds to the logits before
            the division by the temperature; 1 in the paper. Defaults to `0.0`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`. `return_attention_scores` returns the weights of keys at
    their original positions, without noise.

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
        # without bias: dividing columns by their sums would cancel it
        shape = self.num_key_value_heads, self.key_dim, blocks
        # initial logits of independent keys have variance 1
        deviation = (self.key_dim * self.block_size) ** -0.5
        normal = keras.initializers.RandomNormal(stddev=deviation)
        self.sort_kernel = full_weight(self, "sort_kernel", shape, normal)
        self.noise_seed = None
        if self.noise:
            self.noise_seed = keras.random.SeedGenerator(self.seed, name="noise_seed")

    def attend(self, query, key, value, visible, state=None, training=None):
        blocks = Blocks(size(key, 1), self.block_size, multiple=self.block_size)
        seen = blocks.cut(mask_or_all(visible.key_mask, key))
        num_iterations = self.num_iterations
        if num_iterations is None:
            num_iterations = 0 if visible.causal else 7
        logits = self._logits(key, blocks, seen, visible.causal, training)
        some = tf.reduce_any(seen, 2)
        permutation = tf.exp(balanced(logits, num_iterations, some, visible.causal))
        given = query, key, value, permutation, blocks, seen, visible.causal
        return tf.cast(attend_to_sorted(*given), query.dtype), None

    def _logits(self, key, blocks, seen, causal, training):
        """The logits R of the permutation P, `(B, K, blocks, blocks)`."""
        length = arguments.up_to_max_length(self, size(key, 1))
        sums = block_sums(key[:, :length], blocks, seen, causal)
        kernel = tf.cast(tf.convert_to_tensor(self.sort_kernel), sums.dtype)
        logits = tf.einsum("bikh,khj->bkij", sums, kernel[..., : blocks.count])
        if training and self.noise:
            uniform = keras.random.uniform(
                tf.shape(logits), 1e-7, 1.0, sums.dtype.name, self.noise_seed
            )
            logits -= self.noise * tf.math.log(-tf.math.log(uniform))
        return logits / self.temperature
