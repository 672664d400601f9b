"""Reformer's attention: exact weights for keys that hash like the query."""

import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.drawn_weights import add_drawn, drawn, first_seed
from keras_performer.layers.signatures import (
    Constraint,
    Initializer,
    Regularizer,
)


@keras.saving.register_keras_serializable(package="keras_performer")
class ReformerAttention(AttentionLayer):
    """Softmax self-attention within buckets of locality-sensitive hashing.

    One dense layer makes queries and keys: the key of a token is its query divided by
    its length. In each round of hashing, random rotations put tokens that point in
    about one direction into one bucket, `argmax([x R; -x R])`. A query attends to the
    other tokens of its buckets, all rounds together, each token once, and to itself
    only where it finds no other.

    It differs from the paper, and from code that follows it, where that lets tokens
    disturb each other:

    - Of a large bucket a query sees the keys fewer than `sliding_window` places away.
      The paper cuts the sorted tokens into chunks, of which a query sees its own and
      the one before: their borders move with the tokens of other buckets, and with
      later tokens. Buckets of up to `sliding_window` tokens are seen whole in both.
    - The number of buckets does not depend on the length. It would change with padding
      and with every token that is generated.
    - A token counts once in however many rounds it is seen. The paper's N counts also
      rounds that put it into the bucket, but too far away.
    - Rotations are drawn once, and saved: training, recomputed gradients and inference
      hash alike.

    So with `causal=True` nothing of a later token reaches an earlier one; that tokens
    are sorted together can change the rounding of sums.

    Tokens that a mask hides, be it as queries or as keys, are left out altogether: they
    see nothing, nothing sees them, and they take no places.

    Args: those of `AttentionLayer`, and
        num_hashes: int, rounds of hashing. Defaults to 8, with which the paper almost
            matches full attention (section 5); cost is in proportion.
        num_buckets: int, even. It belongs near `2 * length / sliding_window` (section
            2); defaults to 64, for 4,096 tokens.
        sliding_window: int W, how near in its bucket a key is that is seen. Defaults to
            128, the paper's chunk (section 5).

        `num_key_value_heads` must be `num_heads`, and `qk_norm` be left out: keys have
        the length one, and queries one that is learned. Rotary positions are applied
        before hashing.

    Call arguments: those of `AttentionLayer`; `value` and `key` are the query, or left
        out.

    Raises:
        ValueError: for a value or key that is not the query, beside what
            `AttentionLayer` raises.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, section 2 and appendix A.

    Example:

    >>> layer = ReformerAttention(num_heads=2, key_dim=8, num_buckets=4, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    projections = ("query", "value")
    shared_query_key = True
    supports_segments = True
    cost = "L log L"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int = 128,
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
        num_hashes: int = 8,
        num_buckets: int = 64,
        causal: bool = False,
        num_key_value_heads: int | None = None,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        if qk_norm:
            raise ValueError(
                "ReformerAttention divides keys by their lengths, and learns those of "
                f"queries: use qk_norm=False. Received: qk_norm={qk_norm!r}"
            )
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            attention_axes=attention_axes,
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
        if self.num_key_value_heads != self.num_heads:
            raise ValueError(
                "Queries of ReformerAttention are its keys: num_key_value_heads must "
                "be num_heads, or None. Received: num_key_value_heads="
                f"{num_key_value_heads}, num_heads={num_heads}"
            )
        self.num_hashes = arguments.positive_int("num_hashes", num_hashes)
        self.num_buckets = arguments.positive_int("num_buckets", num_buckets)
        if self.num_buckets % 2:
            raise ValueError(
                "num_buckets must be even, as half of the buckets are opposite to the "
                f"others. Received: num_buckets={num_buckets}"
            )
        self.sliding_window = arguments.positive_int("sliding_window", sliding_window)

    def build_attention(self):
        seed = first_seed(self.seed)
        half = self.num_buckets // 2
        shape = self.num_hashes, self.num_heads, half, self.key_dim

        def draw():
            with tf.device("CPU:0"):  # so that all kinds of machines draw the same
                rows = shape[0] * shape[1] * shape[2]
                flat = ops.gaussian_matrix(rows, self.key_dim, (seed, 0))
                return tf.transpose(tf.reshape(flat, shape), (0, 1, 3, 2))

        self.rotations = add_drawn(self, "rotations", drawn(draw))

    if not typing.TYPE_CHECKING:

        def __call__(self, query, value=None, key=None, *args, **kwargs):
            # here, as Keras hands other tensors of equal values on to `call`
            value, key = (None if x is query else x for x in (value, key))
            return super().__call__(query, value, key, *args, **kwargs)

    def read(self, query, value=None, key=None, *args, **kwargs):
        given = [n for n, x in (("value", value), ("key", key)) if x is not None]
        if given:
            raise ValueError(
                "ReformerAttention is self-attention, whose queries are its keys: call "
                "it with the query alone, or with the same tensor as value and key. "
                f"Received: {' and '.join(given)} other than the query"
            )
        return super().read(query, None, None, *args, **kwargs)

    def attend(self, query, key, value, visible, state=None, training=None):
        buckets = self._buckets(query)
        return (
            ops.lsh_attention(query, value, buckets, self.sliding_window, visible),
            None,
        )

    def outline(self, query, key, value, visible, state=None, training=None):
        return value, None

    def scores(self, query, key, visible):
        return ops.lsh_scores(query, self._buckets(query), self.sliding_window, visible)

    def _buckets(self, query):
        return ops.lsh_buckets(query, tf.convert_to_tensor(self.rotations))

    def get_config(self):
        names = "num_hashes", "num_buckets", "sliding_window"
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
        }
