"""The attention of the Linear Transformer."""

import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers import state as layer_state
from keras_performer.layers.attention import ForgettingAttention
from keras_performer.layers.performer import (
    PerformerAttention,
    should_compile,
)
from keras_performer.ops.linear_attention import linear_attention
from keras_performer.ops.shapes import size, sum_dtype


@keras.saving.register_keras_serializable(package="keras_performer")
class LinearTransformerAttention(ForgettingAttention):
    """Attention of the Linear Transformer, with the features elu(x) + 1.

    With phi(x) = elu(x) + 1, the weight of key j is phi(q) . phi(k_j), divided by the
    sum over all keys that the query sees. It does not estimate softmax: train it from
    scratch, or train on after a conversion. Time and memory are linear in the length,
    and a causal layer has a state, as in `PerformerAttention`.

    `PerformerAttention(feature_map="elu", num_random_features=None)` is nearly the
    same, but divides queries and keys by H^(1/4) and adds 0.001 to each feature. This
    layer adds nothing: if all weights of a query round to 0 (below 1e-38 in float32),
    its attended values are 0.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        chunk_size: int, the largest number of tokens processed at once, as in
            `PerformerAttention`. Defaults to `None`.
        jit_compile: bool or "auto", whether XLA compiles the attention, as in
            `PerformerAttention`. Defaults to `"auto"`.
        forget_gate: bool, let weights fade with distance, as in `PerformerAttention`.
            Defaults to `False`.
        forget_gate_bias: two floats, or one for each key-value head: initial biases of
            the gate, as in `PerformerAttention`. Defaults to `(2.0, 7.0)`.
        **kwargs: further arguments of `AttentionLayer`, such as `causal`, `dropout` and
            `rotary`.

    Reference:
        Katharopoulos et al. 2020, Transformers are RNNs, arXiv 2006.16236, equations 5
        and 7, and section 3.3 for causal attention.

    Example:

    >>> layer = LinearTransformerAttention(num_heads=2, key_dim=8, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_state = True
    supports_segments = True
    cost = "L"
    # as that of `PerformerAttention`
    initial_logit_scale = 4.0

    def __init__(
        self,
        *args: typing.Any,
        chunk_size: int | None = None,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.chunk_size = arguments.positive_int("chunk_size", chunk_size, default=None)
        self.jit_compile = arguments.jit_compile(jit_compile)

    def feature_kernel(self):
        """The kernel of the features, for `ops`."""
        return ops.EluKernel()

    def attend(self, query, key, value, visible, state=None, training=None, decay=None):
        in_order = visible.causal or decay is not None
        compiles = should_compile(self.jit_compile, query, key, training, in_order)
        attended, state = linear_attention(
            query,
            key,
            value,
            self.feature_kernel(),
            visible,
            state=None if state is None else self._as_state(state),
            chunk_size=self.chunk_size,
            decay=decay,
            jit_compile=compiles,
        )
        return attended, None if state is None else state._asdict()

    def outline(
        self, query, key, value, visible, state=None, training=None, decay=None
    ):
        """Checks inputs and returns shapes as `attend` does, without computing."""
        if state is not None:
            self._as_state(state)
        attended = tf.tile(query[..., :1], (1, 1, 1, self.value_dim))
        return attended, self.empty_state(size(query, 0)) if visible.causal else None

    def scores(self, query, key, visible, decay=None):
        return ops.attention_scores(
            query, key, self.feature_kernel(), visible, decay=decay
        )

    def empty_state(self, batch_size):
        return ops.initial_state(
            batch_size,
            self.num_key_value_heads,
            self.key_dim,
            self.value_dim,
            sum_dtype(self.compute_dtype),
        )._asdict()

    # two passes over the pieces of a sequence, through the kernel of a layer
    absorb = PerformerAttention.absorb
    answer = PerformerAttention.answer

    def _as_state(self, state):
        return layer_state.attention_entry(self, ops.State, "key_dim", state)

    def get_config(self):
        names = "chunk_size", "jit_compile"
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
        }
