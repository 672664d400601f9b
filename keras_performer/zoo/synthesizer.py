"""Synthesizer: attention weights from each token alone, or from positions alone."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.dense import full_weight
from keras_performer.ops.shapes import size, sum_dtype

KINDS = "dense", "random", "factorized_random"


@keras.saving.register_keras_serializable(package="keras_performer")
class SynthesizerAttention(AttentionLayer):
    """Synthesizer attention, whose weights do not compare queries with keys.

    For token x at position i and the key at position j, each head replaces the logit
    q . k of softmax attention by

        "dense"                 (W2 relu(W1 x + b1) + b2)[j]
        "random"                R[i, j]
        "factorized_random"     (R1 R2^T)[i, j]

    All parameters are learned. A softmax over the visible keys follows. The cost is
    quadratic: use the layer to measure the value of comparing queries with keys, not as
    a fast attention.

    Weights belong to positions: sequences have at most `max_length` tokens, and shorter
    ones use the first positions. Masked keys have no weight. Padding at the end changes
    nothing; padding on the left moves tokens to other weights.

    The weights W2 (`place_kernel`), R (`alignment`), R1 (`query_factor`) and R2
    (`key_factor`) start as Glorot uniform; b2 (`place_bias`) starts as 0. Regularizers
    and constraints apply to the dense layers only.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, number of rows of W1, the dense layer `query`
            (kind="dense" only).
        max_length: int, maximal number of tokens in a sequence.
        kind: "dense" (the first in the paper), "random" or "factorized_random".
            Defaults to `"dense"`.
        rank: int, number of columns of R1 and R2 (kind="factorized_random" only).
            Defaults to `None`, 8 as in section 3.2.
        **kwargs: further arguments, as in `PerformerAttention`, such as `causal`,
            `dropout` and `rotary`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`.

    Raises:
        ValueError: if there are more than `max_length` tokens (`InvalidArgumentError`
            in graphs of unknown length), and as in `AttentionLayer`.

    Reference:
        Tay et al. 2020, Synthesizer, arXiv 2005.00743, section 3. Its factorized dense
        kind and mixtures with softmax attention are left out.

    Example:

    >>> layer = SynthesizerAttention(2, key_dim=8, max_length=128, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    projections: tuple[str, ...] = ("query", "value")
    drops_weights = True

    def __init__(
        self,
        *args: typing.Any,
        max_length: int,
        kind: typing.Literal["dense", "random", "factorized_random"] = "dense",
        rank: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.max_length = arguments.positive_int("max_length", max_length)
        self.kind = arguments.one_of("kind", kind, KINDS)
        self.rank = arguments.positive_int("rank", rank, default=None)
        if rank is not None and kind != "factorized_random":
            raise ValueError(
                'Only kind="factorized_random" has a rank: leave rank out. Received: '
                f"rank={rank}, kind={kind!r}"
            )
        if kind != "dense":
            self.projections = ("value",)

    def build_attention(self):
        if self.kind == "dense":
            self.place_kernel = self._add("place_kernel", self.key_dim, self.max_length)
            if self.use_bias:
                shape = self.num_heads, self.max_length
                self.place_bias = full_weight(self, "place_bias", shape, "zeros")
        elif self.kind == "random":
            self.alignment = self._add("alignment", self.max_length, self.max_length)
        else:
            factor = self.max_length, self.rank or 8
            self.query_factor = self._add("query_factor", *factor)
            self.key_factor = self._add("key_factor", *factor)

    def project(self, name, x, positions=None):
        if name in self.projections:
            return super().project(name, x, positions)
        return x  # only its length is used

    def attend(self, query, key, value, visible, state=None, training=None):
        weights = self._weights(query, key, visible)
        if training and self.dropout:  # each sequence drops other weights
            weights = self._of_each_sequence(weights, query, key)
            weights = self._dropout_layer(weights, training=training)
        group = self.num_heads // self.num_key_value_heads
        value = tf.repeat(tf.cast(value, weights.dtype), group, axis=2)
        if weights.shape[0] == 1:  # so that the gradient has no batch axis
            attended = tf.einsum("nts,bsnv->btnv", weights[0], value)
        else:
            attended = tf.einsum("bnts,bsnv->btnv", weights, value)
        return tf.cast(attended, self.compute_dtype), None

    def scores(self, query, key, visible):
        weights = tf.cast(self._weights(query, key, visible), self.compute_dtype)
        return self._of_each_sequence(weights, query, key)

    def _add(self, name, num_rows, num_columns):
        heads = self.num_heads
        # Keras multiplies both fans by the axis of heads; `heads` undoes this
        scaling = keras.initializers.VarianceScaling(heads, "fan_avg", "uniform")
        return full_weight(self, name, (heads, num_rows, num_columns), scaling)

    def _of_each_sequence(self, weights, query, key):
        """Repeats a batch of 1 in the result of `_weights`."""
        sizes = size(query, 0), self.num_heads, size(query, 1), size(key, 1)
        return tf.broadcast_to(weights, sizes)

    def _weights(self, query, key, visible):
        """Weights `(B, N, T, S)`, float32 or float64; a batch of 1 if all are alike."""
        length, num_keys = size(query, 1), size(key, 1)
        logits = self._logits(query, arguments.up_to_max_length(self, num_keys))
        seen = visible.matrix(length, num_keys)[:, tf.newaxis]
        # not -inf: its softmax is NaN where no key is visible
        weights = tf.nn.softmax(tf.where(seen, logits, logits.dtype.min))
        return tf.where(seen, weights, tf.zeros_like(weights))

    def _logits(self, query, num_keys):
        """Logits `(B, N, T, S)`, or `(1, N, T, S)` if they depend only on positions."""
        dtype = sum_dtype(self.compute_dtype)

        def cast(weight):
            return tf.cast(tf.convert_to_tensor(weight), dtype)

        if self.kind == "dense":
            hidden = tf.nn.relu(tf.cast(query, dtype))
            kernel = cast(self.place_kernel)[:, :, :num_keys]
            logits = tf.einsum("btnh,nhs->bnts", hidden, kernel)
            if self.use_bias:
                logits += cast(self.place_bias)[:, tf.newaxis, :num_keys]
            return logits
        length = arguments.up_to_max_length(self, size(query, 1))
        if self.kind == "random":
            return cast(self.alignment)[tf.newaxis, :, :length, :num_keys]
        query_factor = cast(self.query_factor)[:, :length]
        key_factor = cast(self.key_factor)[:, :num_keys]
        return tf.matmul(query_factor, key_factor, transpose_b=True)[tf.newaxis]
