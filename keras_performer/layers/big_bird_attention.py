"""Big Bird's attention: blocks that see a window, global blocks and random ones."""

import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.seeds import SavedSeed
from keras_performer.layers.signatures import (
    Constraint,
    Initializer,
    Regularizer,
)
from keras_performer.ops.block_sparse import block_sparse_scores, number_of_blocks
from keras_performer.ops.shapes import size


@keras.saving.register_keras_serializable(package="keras_performer")
class BigBirdAttention(AttentionLayer):
    """Softmax attention to near, global and random blocks, linear in the length.

    Tokens stand in blocks, the last of which may be shorter. A block sees itself and
    one to each side, global blocks, and random ones of the others, each once, under one
    softmax; where there are not so many others it sees all. Global blocks, the first
    and the last, see all. That is ITC of the paper, without tokens of its own for it.

    If causal a token sees no later one: its own block up to itself and the block
    before, the first blocks as global ones, and random ones of the earlier blocks. The
    paper has no such form.

    Which random blocks a block sees depends on the number of blocks, and on a seed, the
    weight `random_blocks_seed`: a table would end at some length. They are the same in
    training and inference, in every batch, on every machine, and once loaded; and
    others in each key-value head. A layer has others than the next unless both have the
    same seed.

    Hidden keys have no weight, but their places count: with more padding there are more
    blocks, whose random and last global ones are others. Pad to one length always.

    Args: those of `AttentionLayer`, and
        seed: int, seeds dropout and the random blocks. By default the latter are drawn
            when the layer is built, and saved with the weights.
        block_size: int, tokens of a block. 64 as in the paper's models, and so the
            next two.
        num_global_blocks: int, how many blocks see all and are seen by all: the first
            and last in turn, or if causal the first.
        num_random_blocks: int, how many random blocks a block sees.

    Raises:
        ValueError: for query and key of different lengths, beside what `AttentionLayer`
            raises.

    Reference:
        Zaheer et al. 2020, Big Bird, arXiv 2007.14062, section 2 and appendix D.

    Example:

    >>> layer = BigBirdAttention(num_heads=2, key_dim=8, block_size=8)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    cost = "L"

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
        block_size: int = 64,
        num_global_blocks: int = 2,
        num_random_blocks: int = 3,
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
        self.num_global_blocks = arguments.count("num_global_blocks", num_global_blocks)
        self.num_random_blocks = arguments.count("num_random_blocks", num_random_blocks)

    def build_attention(self):
        self._random_blocks = SavedSeed(self.seed, name="random_blocks")
        self._random_blocks.build()

    @property
    def random_blocks_seed(self):
        """What the random blocks are drawn of, an int32 weight."""
        return self._random_blocks.seed

    def seen_blocks(self, length: int | tf.Tensor, causal: bool) -> ops.SeenBlocks:
        """The blocks that each block sees.

        Args:
            length: int or scalar tensor, tokens of a sequence.
            causal: bool, whether later tokens are hidden.
        """
        return ops.big_bird_blocks(
            number_of_blocks(length, self.block_size),
            self.num_key_value_heads,
            self.num_global_blocks,
            self.num_random_blocks,
            tf.convert_to_tensor(self.random_blocks_seed),
            causal,
        )

    def attend(self, query, key, value, visible, state=None, training=None):
        blocks = self.seen_blocks(size(query, 1), visible.causal)
        attended = ops.block_sparse_attention(
            query, key, value, blocks, self.block_size, visible
        )
        return attended, None

    def scores(self, query, key, visible):
        blocks = self.seen_blocks(size(query, 1), visible.causal)
        return block_sparse_scores(query, key, blocks, self.block_size, visible)

    def get_config(self):
        names = "block_size", "num_global_blocks", "num_random_blocks"
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
        }
