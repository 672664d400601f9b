"""One layer of an encoder, as KerasHub's."""

import typing

import keras

from keras_performer.layers.signatures import LayerInput
from keras_performer.layers.transformer_layer import TransformerLayer


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerEncoder(TransformerLayer):
    """KerasHub's `TransformerEncoder` with attention linear in the length.

    Self-attention and a feed-forward network. Constructor and call are those of
    `keras_hub.layers.TransformerEncoder`, which need not be installed. What differs: by
    default keys have estimated weights, those of `PerformerAttention`; `dropout` falls
    on attended values; and an `attention_mask` cannot differ by query.

    Args:
        intermediate_dim: int, width of the feed-forward network.
        num_heads: int, number of attention heads; it divides the width of the inputs,
            which the heads share.
        dropout: float, dropout rate, in the attention and after each part.
        activation: name or function, the activation of the feed-forward network.
        layer_norm_epsilon: float, epsilon of the normalizations.
        kernel_initializer: initializer of the kernels.
        bias_initializer: initializer of the biases.
        normalize_first: bool, normalize what each part gets (as GPT-2), not what is
            there after it (as BERT).
        seed: int, seeds the random features and dropout.
        feature_map, num_random_features, num_key_value_heads, chunk_size, exact_below,
            exact_window, initial_log_gain, rotary, qk_norm, jit_compile: as in
            `PerformerAttention`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: tensor of shape `(B, T, hidden_dim)`.
        padding_mask: bool or int tensor `(B, T)`, false for padding, which no token
            sees. Defaults to Keras' implicit mask.
        attention_mask: bool or int tensor `(B, 1, T)`: which keys are seen.
        training: bool, whether to apply dropout.
        return_attention_scores: bool, also return the implied attention matrix
            `(B, N, T, T)`, for looking at short sequences.
        segment_ids, positions: as in `PerformerAttention`.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`, or `(tensor, scores)`.

    Raises:
        ValueError: for a mask that differs by query.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762, section 3.1.

    Example:

    >>> layer = PerformerEncoder(intermediate_dim=64, num_heads=2)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    def build(self, inputs_shape):
        self.attention = self.made_attention("attention", inputs_shape)
        self.attention_norm = self.made_norm(inputs_shape)
        self.build_feed_forward(inputs_shape)

    def call(
        self,
        inputs: LayerInput,
        padding_mask: LayerInput | None = None,
        attention_mask: LayerInput | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
    ) -> typing.Any:
        x, visible = self.tokens(inputs, padding_mask)
        attended = self.attention(
            self.before(self.attention_norm, x),
            key_mask=visible,
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
            segment_ids=segment_ids,
            positions=positions,
        )
        scores = None
        if return_attention_scores:
            attended, scores = attended
        x = self.after(self.attention_norm, x, attended, training)
        x = self.feed_forward(x, training)
        return (x, scores) if return_attention_scores else x

    if typing.TYPE_CHECKING:  # what Keras hands to `call`; its own takes anything
        __call__ = call

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
