"""Exact attention: what linear attention estimates, and every comparison needs."""

import functools

import keras

from keras_performer import ops
from keras_performer.layers.attention import AttentionLayer


@keras.saving.register_keras_serializable(package="keras_performer")
class ExactAttention(AttentionLayer):
    """Softmax attention in time and memory quadratic in the length.

    It computes what `keras.layers.MultiHeadAttention` computes, dropout included, with
    the masks, grouped heads and weights of `PerformerAttention`: the baseline that
    linear attention is compared with. It has no state.

    Args: those of `AttentionLayer`.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762.

    Example:

    >>> layer = ExactAttention(num_heads=2, key_dim=8, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    supports_segments = True
    drops_weights = True

    def attend(self, query, key, value, visible, state=None, training=None):
        drop = functools.partial(self._dropout_layer, training=training)
        return ops.exact_attention(query, key, value, visible, dropout=drop), None

    def scores(self, query, key, visible):
        return ops.exact_scores(query, key, visible)
