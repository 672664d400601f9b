"""Local attention: exact weights for near keys only."""

import typing

import keras

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers import state as layer_state
from keras_performer.layers.attention import ForgettingAttention
from keras_performer.layers.performer import should_compile
from keras_performer.ops.slices import attend_slice_locally


@keras.saving.register_keras_serializable(package="keras_performer")
class LocalAttention(ForgettingAttention):
    """Local attention: exact weights for near keys, at a cost linear in the length.

    Query i sees the keys j with `|i - j| < sliding_window`, or if causal the keys with
    `0 <= i - j < sliding_window`. Masked tokens count in the distance. This is
    `PerformerAttention(exact_window=...)` without far keys; compare the two to see if
    far keys matter. The layer keeps no attention matrix, so `dropout` acts on the
    attended values, not on the weights as in `keras.layers.MultiHeadAttention`.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        sliding_window: int W, required. A query sees keys less than W tokens away; with
            1 it sees only its own token.
        jit_compile: bool or "auto", as in `PerformerAttention`, but "auto" compiles on
            GPUs only. Defaults to `"auto"`.
        forget_gate, forget_gate_bias: as in `PerformerAttention`. Defaults to `False`
            and `(2.0, 7.0)`.

    Call arguments and returns: as in `PerformerAttention`.

    Raises:
        ValueError: if query and key have different lengths, if the state comes from
            another layer or window, and as in `PerformerAttention`.

    Reference:
        Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1.

    Example:

    >>> layer = LocalAttention(num_heads=2, key_dim=8, sliding_window=32, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_state = True
    supports_segments = True
    supports_cross_attention = False
    counts_tokens = "sliding_window"
    cost = "L"

    def __init__(
        self,
        *args: typing.Any,
        sliding_window: int,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sliding_window = arguments.positive_int("sliding_window", sliding_window)
        self.jit_compile = arguments.jit_compile(jit_compile)

    def attend(self, query, key, value, visible, state=None, training=None, decay=None):
        compiles = should_compile(self.jit_compile, query, key, training, in_order=None)
        if state is not None:
            given = ops.Recent, "sliding_window", state
            state = layer_state.attention_entry(self, *given)
        options = {"state": state, "decay": decay, "jit_compile": compiles}
        attended, state = ops.local_attention(
            query, key, value, self.sliding_window, visible, **options
        )
        return attended, layer_state.entry_of(state)

    def attend_slice(self, slices, query, key, value, visible, decay=None):
        given = query, key, value, self.sliding_window, visible, decay
        return attend_slice_locally(slices, *given)

    def empty_state(self, batch_size):
        shape = self.sliding_window, self.num_key_value_heads
        sizes = self.key_dim, self.value_dim
        sizes = *sizes, self.compute_dtype, self.forget_gate
        return layer_state.entry_of(ops.Recent.empty(batch_size, *shape, *sizes))
