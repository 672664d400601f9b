"""Sinkhorn attention: exact weights in the own block and in one sorted to it."""

import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.signatures import (
    Constraint,
    Initializer,
    Regularizer,
)
from keras_performer.ops import sinkhorn
from keras_performer.ops.shapes import ceil_div, size


@keras.saving.register_keras_serializable(package="keras_performer")
class SinkhornAttention(AttentionLayer):
    """Softmax attention to the own block of tokens and to one that is sorted to it.

    The sequence is cut into blocks of `block_size`. What block i is sorted by is the
    sum of its keys; with the weights W, `sort_kernel`, of a key-value head that gives
    the logits of row i of a matrix, which is balanced to a soft permutation:

        R_ij = (sum_s key_is) . W_j / temperature
        P = exp(R), whose rows and columns are divided by their sums, by turns
        sorted_key_is = sum_j P_ij key_js, and the same for values

    Rows are the last to be divided, a half step more than in the paper, so that sorted
    values are means. A query of block i sees the keys of block i and of the one sorted
    to it, in one softmax. As in the paper W ends at `max_length`: a column is a place.

    If causal a query sees no later key of its own block, P has blocks before the own
    only, R is made of the keys up to the first of block i, and columns are divided by
    their sums over rows up to the own: nothing later has a part in row i. The first
    block sees itself alone.

    Hidden keys keep their places and count for nothing: they are in no sum, sorted
    keys are means over visible keys at their place, and a sorted key counts by the part
    of P that is of visible ones. A block without visible keys is left out of P. Padding
    to the right therefore changes nothing; padding to the left moves the blocks.

    Args: those of `AttentionLayer`, and
        block_size: int, tokens of a block. Time and memory of P are least near the root
            of the length, and of the rest they grow with it.
        max_length: int, the most tokens of a sequence.
        num_iterations: int, how often columns are divided, too. Defaults to 7 if not
            causal, which with the temperature of 0.75 is the default of the public
            lucidrains/sinkhorn-transformer, after the comparisons of the paper; and to
            0 if causal, where P then is a softmax over earlier blocks: all rows and
            columns of a triangle add up to 1 in the identity only, so that each
            division of columns brings P nearer to the block before, whatever R says.
        temperature: float, smaller ones make P harder.
        noise: float, how much Gumbel noise is added to the logits in training, before
            the division by the temperature; 1 as in the paper. Defaults to none.

    Call arguments: those of `AttentionLayer`; `return_attention_scores` gives the
        weights of keys wherever they were sorted to, without noise.

    Raises:
        ValueError: for query and key of different lengths, and more than `max_length`
            tokens (`tf.errors.InvalidArgumentError` in graphs of unknown length),
            beside what `AttentionLayer` raises.

    Reference:
        Tay et al. 2020, Sparse Sinkhorn Attention, arXiv 2002.11296, section 3.

    Example:

    >>> layer = SinkhornAttention(2, key_dim=8, block_size=16, max_length=512)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    any_length = False
    cost = "L^2 / block_size + L block_size"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        block_size: int,
        max_length: int,
        num_iterations: int | None = None,
        temperature: float = 0.75,
        noise: float = 0.0,
        causal: bool = False,
        num_key_value_heads: int | None = None,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            attention_axes=attention_axes,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            causal=causal,
            num_key_value_heads=num_key_value_heads,
            rotary=rotary,
            qk_norm=qk_norm,
            **kwargs,
        )
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
        self.sort_kernel = self.add_weight(
            name="sort_kernel",
            shape=(self.num_key_value_heads, self.key_dim, blocks),
            # logits of independent keys begin with a variance of one
            initializer=keras.initializers.RandomNormal(
                stddev=(self.key_dim * self.block_size) ** -0.5
            ),
            autocast=False,
        )
        self.noise_seed = None
        if self.noise:
            self.noise_seed = keras.random.SeedGenerator(self.seed, name="noise_seed")

    def attend(self, query, key, value, visible, state=None, training=None):
        logits = self._logits(key, visible, training)
        options = self.block_size, visible, self._iterations(visible)
        attended = sinkhorn.sinkhorn_attention(query, key, value, logits, *options)
        return attended, None

    def scores(self, query, key, visible):
        logits = self._logits(key, visible)
        options = self.block_size, visible, self._iterations(visible)
        return sinkhorn.sinkhorn_scores(query, key, logits, *options)

    def get_config(self):
        names = "block_size", "max_length", "num_iterations", "temperature", "noise"
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
        }

    def _iterations(self, visible):
        if self.num_iterations is None:
            return 0 if visible.causal else 7
        return self.num_iterations

    def _logits(self, key, visible, training=False):
        """What P is made from, `(B, K, blocks, blocks)`."""
        length = arguments.up_to_max_length(self, size(key, 1))
        sums = sinkhorn.block_sums(key[:, :length], self.block_size, visible)
        kernel = tf.cast(tf.convert_to_tensor(self.sort_kernel), sums.dtype)
        logits = tf.einsum("bikh,khj->bkij", sums, kernel[..., : size(sums, 1)])
        if training and self.noise:
            uniform = keras.random.uniform(
                tf.shape(logits), 1e-7, 1.0, sums.dtype.name, self.noise_seed
            )
            logits -= self.noise * tf.math.log(-tf.math.log(uniform))
        return logits / self.temperature
