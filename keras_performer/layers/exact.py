"""Exact attention."""

import functools

import keras

from keras_performer import ops
from keras_performer.layers.attention import ForgettingAttention


@keras.saving.register_keras_serializable(package="keras_performer")
class ExactAttention(ForgettingAttention):
    """Exact softmax attention, at a cost quadratic in the length.

    This layer computes the same as `keras.layers.MultiHeadAttention`, including
    dropout, with the masks, grouped heads and weights of `PerformerAttention`. Use it
    as the baseline for linear attention. It has no state.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        forget_gate, forget_gate_bias: as in `PerformerAttention`. Defaults to `False`
            and `(2.0, 7.0)`.

    Call arguments and returns: as in `PerformerAttention`, but without `state` and
    `return_state`.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762.

    Example:

    >>> layer = ExactAttention(num_heads=2, key_dim=8, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_segments = True
    drops_weights = True

    def attend(self, query, key, value, visible, state=None, training=None, decay=None):
        drop = functools.partial(self._dropout_layer, training=training)
        inputs = query, key, value, visible
        return ops.exact_attention(*inputs, dropout=drop, decay=decay), None

    def scores(self, query, key, visible, decay=None):
        return ops.exact_scores(query, key, visible, decay=decay)
