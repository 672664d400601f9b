"""One layer of a decoder, as KerasHub's."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers.key_masks import visible_keys
from keras_performer.layers.signatures import LayerInput
from keras_performer.layers.transformer_layer import TransformerLayer


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerDecoder(TransformerLayer):
    """KerasHub's `TransformerDecoder` with attention linear in the length.

    Causal self-attention, attention to an encoder's sequence if the layer is built with
    one, and a feed-forward network. Constructor and call are those of
    `keras_hub.layers.TransformerDecoder`, which need not be installed, but for its
    caches of keys and values: in their place is a state of fixed size. What else
    differs is what differs in `PerformerEncoder`.

    Args:
        intermediate_dim: int, width of the feed-forward network.
        num_heads: int, number of attention heads; it divides the width of the tokens,
            which the heads share.
        dropout: float, dropout rate, in the attention and after each part.
        activation: name or function, the activation of the feed-forward network.
        layer_norm_epsilon: float, epsilon of the normalizations.
        kernel_initializer: initializer of the kernels.
        bias_initializer: initializer of the biases.
        normalize_first: bool, normalize what each part gets (as GPT-2), not what is
            there after it.
        seed: int, seeds the random features and dropout.
        feature_map, num_random_features, num_key_value_heads, chunk_size, exact_below,
            qk_norm, jit_compile: as in `PerformerAttention`.
        exact_window, initial_log_gain, rotary: as in `PerformerAttention`, for the
            self-attention: no key of another sequence is near.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        decoder_sequence: tensor of shape `(B, T, hidden_dim)`.
        encoder_sequence: tensor of shape `(B, S, dim)`, in each call or in none. A
            `state` knows it: it is left out beside one.
        decoder_padding_mask: bool or int tensor `(B, T)`, false for padding, which no
            token sees. Defaults to Keras' implicit mask.
        decoder_attention_mask: bool or int tensor `(B, 1, T)`: which keys are seen.
        encoder_padding_mask, encoder_attention_mask: the same of `encoder_sequence`.
        use_causal_mask: bool, hide later tokens.
        training: bool, whether to apply dropout.
        segment_ids, positions: as in `PerformerAttention`, for the self-attention.
        state: the state after earlier tokens (causal only), from `initial_state` or an
            earlier call.
        return_state: bool, also return the state after the last token.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`, or `(tensor, state)`.

    Raises:
        ValueError: for a mask that differs by query, an encoder's sequence that is
            there in some calls only, and a state where there can be none.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762, section 3.1.

    Example:

    >>> layer = PerformerDecoder(intermediate_dim=64, num_heads=2)
    >>> layer(keras.ops.ones((1, 100, 16)), keras.ops.ones((1, 30, 16))).shape
    TensorShape([1, 100, 16])

    Token by token, at a cost that does not grow:

    >>> state = layer.initial_state(1, keras.ops.ones((1, 30, 16)))
    >>> y, state = layer(keras.ops.ones((1, 1, 16)), state=state, return_state=True)
    >>> y.shape
    TensorShape([1, 1, 16])
    """

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        shape = decoder_sequence_shape
        self.self_attention = self.made_attention("self_attention", shape)
        self.self_attention_norm = self.made_norm(shape)
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self.made_attention(
                "cross_attention",
                shape,
                encoder_sequence_shape,
                seed=None if self.seed is None else self.seed + 1,
                exact_window=None,
                initial_log_gain=0.0,
                rotary=None,
            )
            self.cross_attention_norm = self.made_norm(shape)
        self.build_feed_forward(shape)

    def call(
        self,
        decoder_sequence: LayerInput,
        encoder_sequence: LayerInput | None = None,
        decoder_padding_mask: LayerInput | None = None,
        decoder_attention_mask: LayerInput | None = None,
        encoder_padding_mask: LayerInput | None = None,
        encoder_attention_mask: LayerInput | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
        state: dict[str, typing.Any] | None = None,
        return_state: bool = False,
    ) -> typing.Any:
        self._check(encoder_sequence, state)
        x, visible = self.tokens(decoder_sequence, decoder_padding_mask)
        attended = self.self_attention(
            self.before(self.self_attention_norm, x),
            key_mask=visible,
            attention_mask=decoder_attention_mask,
            use_causal_mask=use_causal_mask,
            training=training,
            segment_ids=segment_ids,
            positions=positions,
            state=None if state is None else state["self_attention"],
            return_state=return_state,
        )
        later = {}
        if return_state:
            attended, later["self_attention"] = attended
        x = self.after(self.self_attention_norm, x, attended, training)
        if self.cross_attention is not None:
            query = self.before(self.cross_attention_norm, x)
            masks = encoder_padding_mask, encoder_attention_mask
            if state is not None:
                later["cross_attention"] = state["cross_attention"]
            elif return_state:
                later["cross_attention"] = self._absorbed(encoder_sequence, *masks)
            if "cross_attention" in later:
                known = later["cross_attention"]
                attended = self.cross_attention.answer(query, None, known, training)
            else:
                sequence, visible = self._encoded(encoder_sequence, *masks)
                attended = self.cross_attention(
                    query, sequence, key_mask=visible, training=training
                )
            x = self.after(self.cross_attention_norm, x, attended, training)
        x = self.feed_forward(x, training)
        return (x, later) if return_state else x

    if typing.TYPE_CHECKING:  # what Keras hands to `call`; its own takes anything
        __call__ = call

    def initial_state(
        self,
        batch_size: int | tf.Tensor,
        encoder_sequence: LayerInput | None = None,
        encoder_padding_mask: LayerInput | None = None,
        encoder_attention_mask: LayerInput | None = None,
        packed: bool = False,
    ) -> dict[str, typing.Any]:
        """The state of a built layer before the first token.

        Args:
            batch_size: int or scalar tensor B.
            encoder_sequence, encoder_padding_mask, encoder_attention_mask: as in the
                call.
            packed: bool, whether calls are to have `segment_ids`.

        Returns:
            Dict of `"self_attention"`, the state of that attention, and if the layer
            has one `"cross_attention"`, all that it knows of the encoder's sequence.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} must be built before it has a state: call it "
                "on data first."
            )
        self._check(encoder_sequence)
        state = {
            "self_attention": self.self_attention.initial_state(batch_size, packed)
        }
        if self.cross_attention is not None:
            state["cross_attention"] = self._absorbed(
                encoder_sequence, encoder_padding_mask, encoder_attention_mask
            )
        return state

    def compute_output_shape(self, decoder_sequence_shape, encoder_sequence_shape=None):
        return tuple(decoder_sequence_shape)

    def _encoded(self, sequence, padding_mask, attention_mask):
        """The encoder's sequence, and which of its tokens are seen."""
        sequence, visible = self.tokens(sequence, padding_mask)
        return sequence, visible_keys(
            sequence, key_mask=visible, attention_mask=attention_mask
        )

    def _absorbed(self, sequence, padding_mask, attention_mask):
        """What the state says of the encoder's sequence."""
        sequence, visible = self._encoded(sequence, padding_mask, attention_mask)
        nothing = self.cross_attention.empty_state(tf.shape(sequence)[0])
        return self.cross_attention.absorb(sequence, visible, nothing)

    def _check(self, encoder_sequence, state=None):
        given = encoder_sequence is not None
        if self.cross_attention is None and given:
            raise ValueError(
                f"{self.name} was built without encoder_sequence, and has no attention "
                "to one: give it in the first call. Received: encoder_sequence"
            )
        names = ["self_attention", "cross_attention"]
        names = names if self.cross_attention is not None else names[:1]
        if state is None:
            if given == (self.cross_attention is None):
                raise ValueError(
                    f"{self.name} was built with encoder_sequence, and needs one in "
                    "each call without a state. Received: encoder_sequence=None"
                )
        elif not isinstance(state, dict) or set(state) != set(names):
            raise ValueError(
                f"state must be a dict with the entries {', '.join(names)}, from "
                f"initial_state or an earlier call. Received: state={state!r}"
            )
        elif given:
            raise ValueError(
                "A state knows the encoder's sequence: leave encoder_sequence out. "
                "Received: both"
            )
