"""One block of a Performer: attention, then a feed-forward network."""

import keras

from keras_performer.layers.heads_dense import HeadsDense


class PerformerBlock(keras.layers.Layer):
    """Self-attention and a feed-forward network, each normalized first and added.

    Args:
        attention: a `PerformerAttention`.
        intermediate_dim: int, width of the feed-forward network.
        dropout: float, dropout rate after each part.
        seed: int, seeds dropout.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: tensor of shape `(B, T, dim)`.
        mask: bool tensor `(B, T)`, false for padding.
        training: bool, whether to apply dropout.
        state: the attention's state after earlier tokens, or `None`.
        return_state: bool, also return the state after the last token.
    """

    def __init__(self, attention, intermediate_dim, dropout=0.0, seed=None, **kwargs):
        # without autocast Keras leaves the state in float32
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        dtype = self.dtype_policy
        self.attention = attention
        self.intermediate_dim = intermediate_dim
        self.attention_norm = keras.layers.LayerNormalization(dtype=dtype)
        self.feedforward_norm = keras.layers.LayerNormalization(dtype=dtype)
        self.expand = self._dense("expand", intermediate_dim, activation="gelu")
        self.dropout = keras.layers.Dropout(dropout, seed=seed, dtype=dtype)

    def build(self, input_shape):
        dim = input_shape[-1]
        self.contract = self._dense("contract", dim)
        for layer in (self.attention_norm, self.attention, self.feedforward_norm):
            layer.build(input_shape)
        self.expand.build(input_shape)
        self.contract.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, x, mask=None, training=None, state=None, return_state=False):
        attended = self.attention(
            self.attention_norm(x),
            query_mask=mask,
            training=training,
            state=state,
            return_state=return_state,
        )
        if return_state:
            attended, state = attended
        x = self.add(x, attended, training)
        return (x, state) if return_state else x

    def add(self, x, attended, training):
        """Adds what attention gave, then the feed-forward network."""
        x += self.dropout(attended, training=training)
        hidden = self.contract(self.expand(self.feedforward_norm(x)))
        return x + self.dropout(hidden, training=training)

    def _dense(self, name, dim, **options):
        return HeadsDense(
            "abc,cd->abd",
            output_shape=(None, dim),
            bias_axes="d",
            dtype=self.dtype_policy,
            name=name,
            **options,
        )
