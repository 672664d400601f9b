"""Encoder and decoder blocks with the interface of KerasHub's."""

import typing
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_performer.layers import arguments, call_inputs
from keras_performer.layers.arguments import Initializer, LayerInput, positive_int
from keras_performer.layers.call_inputs import visible_keys
from keras_performer.layers.choice import AttentionChoice, OneChoice, takes_options
from keras_performer.layers.config import KeepsInnerChanges, TracesSpec
from keras_performer.layers.dense import heads_dense
from keras_performer.layers.state import HasInitialState, check_entries


@takes_options
class TransformerLayer(
    arguments.JoinsSignatures, TracesSpec, KeepsInnerChanges, keras.layers.Layer
):
    """Base class of `PerformerEncoder` and `PerformerDecoder`.

    It has their arguments and their feed-forward network. Each part adds its output to
    the tokens, and normalizes its input or the sum.
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: str | dict | Callable = "relu",
        layer_norm_epsilon: float = 1e-05,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        normalize_first: bool = False,
        seed: int | None = None,
        *,
        attention: OneChoice = "performer",
        **kwargs: typing.Any,
    ) -> None:
        options, kwargs = arguments.split(kwargs)
        # with `autocast=False`, so that Keras leaves the state in float32
        super().__init__(**arguments.of_keras(self, kwargs))
        self.supports_masking = True
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        self.num_heads = positive_int("num_heads", num_heads)
        self.dropout = arguments.rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = arguments.nonnegative(
            "layer_norm_epsilon", layer_norm_epsilon
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = arguments.boolean("normalize_first", normalize_first)
        self.seed = arguments.seed(seed)
        self._attentions = AttentionChoice(
            type(self), attention, options, self.num_heads, causal=False
        )

    def build_from_config(self, config):
        self._attentions.keep_number_of_features()
        super().build_from_config(config)

    def build_feed_forward(self, shape):
        """Builds the layers after the attention, for tokens `(B, T, hidden_dim)`."""
        self.feedforward_norm = self.made_norm(shape)
        width, wide = self.intermediate_dim, (*shape[:-1], self.intermediate_dim)
        self.expand = self._dense("expand", shape, width, activation=self.activation)
        self.contract = self._dense("contract", wide, shape[-1])
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )

    def made_norm(self, shape):
        """Builds a normalization for tokens of this shape."""
        norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy
        )
        norm.build(shape)
        return norm

    def made_attention(self, name, shape):
        """Builds an attention for tokens of this shape; heads divide the width."""
        call_inputs.check_rank("inputs", shape)
        attention = self._attentions.make(
            num_heads=self.num_heads,
            key_dim=arguments.head_dim(shape[-1], self.num_heads),
            dropout=self.dropout,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            causal=False,
            dtype=self.dtype_policy,
            seed=self.seed,
            name=name,
        )
        attention.build(shape)
        return attention

    def before(self, norm, x):
        """Returns the input of a part of the layer."""
        return norm(x) if self.normalize_first else x

    def after(self, norm, x, made, training=None):
        """Returns tokens x with the output of a part of the layer added."""
        x += self._dropout_layer(made, training=training)
        return x if self.normalize_first else norm(x)

    def feed_forward(self, x, training=None):
        """Adds the output of the feed-forward network to each token."""
        norm = self.feedforward_norm
        made = self.contract(self.expand(self.before(norm, x)))
        return self.after(norm, x, made, training)

    def get_config(self):
        return {
            **super().get_config(),
            **self._attentions.config(made=self.built),
            "activation": keras.activations.serialize(self.activation),
        }

    def _dense(self, name, shape, dim, **options):
        return heads_dense(
            name,
            shape,
            num_summed=1,
            output_shape=(dim,),
            use_bias=True,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            **options,
        )


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerEncoder(TransformerLayer):
    """Transformer encoder block with attention of linear cost.

    Self-attention and a feed-forward network, with the constructor and call of
    `keras_hub.layers.TransformerEncoder` (KerasHub need not be installed). Differences:
    keys have the estimated weights of `PerformerAttention` by default; `dropout` acts
    on attended values; and all queries must have the same `attention_mask`.

    Args:
        intermediate_dim: int, width of the feed-forward network.
        num_heads: int, number of attention heads. It must divide the width of the
            inputs; each head has an equal part of it.
        dropout: float, dropout rate, in the attention and after each part. Defaults to
            `0.0`.
        activation: name or function, the activation of the feed-forward network.
            Defaults to `"relu"`.
        layer_norm_epsilon: float, epsilon of the normalizations. Defaults to `1e-05`.
        kernel_initializer: initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: initializer of the biases. Defaults to `"zeros"`.
        normalize_first: bool, normalize the input of each part (pre-norm, as in GPT-2),
            not the sum after it (post-norm, as in BERT). Defaults to `False`.
        seed: int, seeds the random features and dropout. Defaults to `None`.
        attention: "performer", "exact" (`ExactAttention`), or an `AttentionLayer` or
            the config of one, of which this layer uses a copy. The copy gets the seed
            and dtype of this layer, and its `dropout` if its own is 0. Defaults to
            `"performer"`.
        **kwargs: further arguments of the attention, such as `exact_window`,
            `feature_map` or `rotary` of `PerformerAttention`; and of
            `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: tensor of shape `(B, T, hidden_dim)`.
        padding_mask: bool or int tensor of shape `(B, T)`, false for padding, which no
            token sees. Defaults to Keras' implicit mask.
        attention_mask: bool or int tensor of shape `(B, 1, T)`, true for keys that may
            be seen.
        training: bool, whether to apply dropout.
        return_attention_scores: bool, also return the attention matrix `(B, N, T, T)`
            that the features imply. Use it to look at short sequences.
        segment_ids, positions: as in `PerformerAttention`.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`, or `(tensor, scores)`.

    Raises:
        ValueError: if a mask differs by query.

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
        x, visible = call_inputs.tokens(self, "inputs", inputs, padding_mask)
        attended = self.attention(
            self.before(self.attention_norm, x),
            key_mask=visible,
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
            segment_ids=segment_ids,
            positions=positions,
        )
        scores = ()
        if return_attention_scores:
            attended, *scores = attended
        x = self.after(self.attention_norm, x, attended, training)
        x = self.feed_forward(x, training)
        return (x, *scores) if return_attention_scores else x

    if typing.TYPE_CHECKING:  # what Keras hands to `call`; its own takes anything
        __call__ = call


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerDecoder(HasInitialState, TransformerLayer):
    """Transformer decoder block with attention of linear cost.

    It has causal self-attention, cross-attention if it is built with an encoder's
    sequence, and a feed-forward network. It has the constructor and call of
    `keras_hub.layers.TransformerDecoder` (KerasHub need not be installed), but a state
    of fixed size replaces the caches of keys and values. The differences of
    `PerformerEncoder` apply here, too.

    Args:
        intermediate_dim: int, width of the feed-forward network.
        num_heads: int, number of attention heads.
        **kwargs: further arguments, all as in `PerformerEncoder`. `exact_window`,
            `initial_log_gain`, `forget_gate`, `forget_gate_bias` and `rotary` apply to
            the self-attention only: tokens of two sequences have no distance. The
            cross-attention has as many random features as the self-attention.

    Call arguments:
        decoder_sequence: tensor of shape `(B, T, hidden_dim)`.
        encoder_sequence: tensor of shape `(B, S, dim)`. Pass it in every call or in
            none; with a `state`, which already contains it, leave it out.
        decoder_padding_mask: bool or int tensor of shape `(B, T)`, false for padding,
            which no token sees. Defaults to Keras' implicit mask.
        decoder_attention_mask: bool or int tensor of shape `(B, 1, T)`, true for keys
            that may be seen.
        encoder_padding_mask, encoder_attention_mask: as the decoder's masks, for
            `encoder_sequence`.
        use_causal_mask: bool, hide later tokens. Defaults to `True`, as in KerasHub,
            unlike `PerformerAttention`.
        training: bool, whether to apply dropout.
        segment_ids, positions, state, return_state: as in `PerformerAttention`.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`, or `(tensor, state)`.

    Raises:
        ValueError: if a mask differs by query, if only some calls have an
            `encoder_sequence`, or if there is a state without causal attention.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762, section 3.1.

    Example:

    >>> layer = PerformerDecoder(intermediate_dim=64, num_heads=2)
    >>> layer(keras.ops.ones((1, 100, 16)), keras.ops.ones((1, 30, 16))).shape
    TensorShape([1, 100, 16])

    Token by token, at a constant cost for each:

    >>> state = layer.get_initial_state(1, keras.ops.ones((1, 30, 16)))
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
            config = {**self.self_attention.cross_config(), "name": "cross_attention"}
            config["seed"] = None if self.seed is None else self.seed + 1
            self.cross_attention = type(self.self_attention).from_config(config)
            self.cross_attention.build(shape, encoder_sequence_shape)
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
        x, visible = call_inputs.tokens(
            self, "inputs", decoder_sequence, decoder_padding_mask
        )
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

    def get_initial_state(
        self,
        batch_size: int | tf.Tensor,
        encoder_sequence: LayerInput | None = None,
        encoder_padding_mask: LayerInput | None = None,
        encoder_attention_mask: LayerInput | None = None,
        packed: bool = False,
    ) -> dict[str, typing.Any]:
        """Returns the state of a built layer before the first token.

        Args:
            batch_size: int or scalar tensor B.
            encoder_sequence, encoder_padding_mask, encoder_attention_mask: as in the
                call. Defaults to `None`.
            packed: bool, whether you will pass `segment_ids`. Defaults to `False`.

        Returns:
            Dict of `"self_attention"`, the state of the self-attention, and if the
            layer has cross-attention, `"cross_attention"`, its state after the
            encoder's sequence.

        Raises:
            ValueError: if the layer is not built, or if it was built with an
                `encoder_sequence` and gets none here, or the reverse.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} must be built before it has a state: call it "
                "on data first."
            )
        self._check(encoder_sequence)
        before = self.self_attention.get_initial_state(batch_size, packed)
        state = {"self_attention": before}
        if self.cross_attention is not None:
            masks = encoder_padding_mask, encoder_attention_mask
            state["cross_attention"] = self._absorbed(encoder_sequence, *masks)
        return state

    def _encoded(self, sequence, padding_mask, attention_mask):
        """Returns the encoder's sequence and the mask of its visible tokens."""
        sequence, visible = call_inputs.tokens(self, "inputs", sequence, padding_mask)
        return sequence, visible_keys(
            sequence, key_mask=visible, attention_mask=attention_mask
        )

    def _absorbed(self, sequence, padding_mask, attention_mask):
        """Returns the state of the cross-attention after the encoder's sequence."""
        sequence, visible = self._encoded(sequence, padding_mask, attention_mask)
        nothing = self.cross_attention.empty_state(tf.shape(sequence)[0])
        return self.cross_attention.absorb(sequence, visible, nothing)

    def _check(self, encoder_sequence, state=None):
        given = encoder_sequence is not None
        names = ["self_attention", "cross_attention"]
        if self.cross_attention is None:
            if given:
                raise ValueError(
                    f"{self.name} was built without encoder_sequence, so it has no "
                    "cross-attention: give it in the first call. Received: "
                    "encoder_sequence"
                )
            names = names[:1]
        if state is None:
            if given != (self.cross_attention is not None):
                raise ValueError(
                    f"{self.name} was built with encoder_sequence, and needs one in "
                    "each call without a state. Received: encoder_sequence=None"
                )
            return
        check_entries(state, names)
        if given:
            raise ValueError(
                "A state contains the encoder's sequence: leave encoder_sequence out. "
                "Received: state and encoder_sequence"
            )
