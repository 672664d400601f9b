"""A Transformer block for any attention or mixer, and its short convolution."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments, call_inputs, config
from keras_performer.layers import state as layer_state
from keras_performer.layers.arguments import LayerInput, positive_int
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.call_inputs import as_mask
from keras_performer.layers.dense import full_weight, token_dense
from keras_performer.layers.mixing import MixingLayer
from keras_performer.layers.state import HasInitialState
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.slices import check_length, current_slices


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerBlock(
    HasInitialState, config.TracesSpec, config.KeepsInnerChanges, keras.layers.Layer
):
    """Transformer block of self-attention and a feed-forward network.

    Each part normalizes its input and adds its output to the tokens (pre-norm). With
    `conv_kernel_size` a short convolution over neighbouring tokens comes first, also
    normalized and added; it handles each channel by itself.

    Args:
        attention: an `AttentionLayer`, such as `PerformerAttention(...)`, a
            `MixingLayer`, such as `FourierMixing()`, or the config of one. `None`
            leaves out the attention and its normalization: the no-attention baseline,
            where no token sees another.
        intermediate_dim: int, width of the feed-forward network.
        dropout: float, dropout rate after each part. Defaults to `0.0`.
        seed: int, seeds dropout. Defaults to `None`.
        conv_kernel_size: int, number of tokens that the convolution sees; 4 is a good
            choice. Masked tokens and tokens of other segments count as zeros. Defaults
            to `None`, no convolution.
        conv_padding: "causal" (a token and tokens before it) or "same" (bidirectional),
            as in `keras.layers.Conv1D`. Defaults to "same" if the attention is not
            causal, otherwise to "causal".
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: tensor of shape `(B, T, dim)`.
        mask: bool tensor of shape `(B, T)`, false for padding. Defaults to Keras'
            implicit mask.
        training: bool, whether to apply dropout.
        segment_ids, positions, state, return_state: as in `PerformerAttention`.

    Returns:
        Tensor of shape `(B, T, dim)`, or `(tensor, state)`.

    Raises:
        ValueError: if the attention does not support an argument.

    Example:

    >>> from keras_performer.layers import PerformerAttention
    >>> block = PerformerBlock(PerformerAttention(num_heads=2, key_dim=8), 64)
    >>> block(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    def __init__(
        self,
        attention: AttentionLayer | MixingLayer | dict | None,
        intermediate_dim: int,
        dropout: float = 0.0,
        seed: int | None = None,
        *,
        conv_kernel_size: int | None = None,
        conv_padding: typing.Literal[None, "causal", "same"] = None,
        **kwargs: typing.Any,
    ) -> None:
        # with `autocast=False`, so that Keras leaves the state in float32
        super().__init__(**arguments.of_keras(self, kwargs))
        self.supports_masking = True
        self.attention = config.as_layer(
            "attention", attention, (AttentionLayer, MixingLayer), or_none=True
        )
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        rate = arguments.rate("dropout", dropout)
        self.seed = arguments.seed(seed)
        self.conv_kernel_size = positive_int(
            "conv_kernel_size", conv_kernel_size, default=None
        )
        self.conv_padding = self._padding(conv_padding)
        dtype = self.dtype_policy
        self.convolution = None
        if self.conv_kernel_size is not None:
            self.convolution_norm = keras.layers.LayerNormalization(dtype=dtype)
            sizes = self.conv_kernel_size, self.conv_padding == "causal"
            self.convolution = ShortConvolution(*sizes, dtype=dtype, name="convolution")
        if self.attention is not None:
            self.attention_norm = keras.layers.LayerNormalization(dtype=dtype)
        self.feedforward_norm = keras.layers.LayerNormalization(dtype=dtype)
        self.expand = token_dense(
            "expand", self.intermediate_dim, dtype=dtype, activation="gelu"
        )
        # the layer, not the rate: files have the layer's seed under this name
        self.dropout = keras.layers.Dropout(rate, seed=self.seed, dtype=dtype)

    def build(self, input_shape):
        call_inputs.check_rank("inputs", input_shape)
        dim = input_shape[-1]
        self.contract = token_dense("contract", dim, dtype=self.dtype_policy)
        if self.convolution is not None:
            self.convolution_norm.build(input_shape)
            self.convolution.build(input_shape)
        if self.attention is not None:
            self.attention_norm.build(input_shape)
            if not self.attention.built:
                self.attention.build(input_shape)
        self.feedforward_norm.build(input_shape)
        self.expand.build(input_shape)
        self.contract.build((*input_shape[:-1], self.intermediate_dim))

    def call(
        self,
        x: LayerInput,
        mask: LayerInput | None = None,
        training: bool | None = None,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
        state: typing.Any = None,
        return_state: bool = False,
    ) -> typing.Any:
        x, mask = call_inputs.tokens(self, "x", x, mask)
        if current_slices() is not None:
            layer_state.check_no_state(self, state, return_state)
        later = {}
        if self.convolution is not None:
            x, later["convolution"], state = self.convolve(
                x, mask, training, segment_ids, state, return_state
            )
        if self.attention is None:
            if positions is not None:
                raise ValueError(
                    "positions need attention with rotary: leave them out of a block "
                    "without attention. Received: positions, and attention=None"
                )
            x, state = x + self.transformed(x, training), ()
        else:
            is_mixer = isinstance(self.attention, MixingLayer)
            attended = self.attention(
                self.attention_norm(x),
                **{"mask" if is_mixer else "query_mask": mask},
                training=training,
                segment_ids=segment_ids,
                positions=positions,
                state=state,
                return_state=return_state,
            )
            if return_state:
                attended, state = attended
            x = self.add(x, attended, training)
        if not return_state:
            return x
        return x, {**later, "attention": state} if later else state

    if typing.TYPE_CHECKING:  # Keras types its own `__call__` as taking anything
        __call__ = call

    def _padding(self, conv_padding):
        causal = self.attention is None or self.attention.causal
        if conv_padding is None:
            return "causal" if causal else "same"
        arguments.one_of("conv_padding", conv_padding, ("causal", "same", None))
        if conv_padding == "same" and self.attention is not None and causal:
            raise ValueError(
                'conv_padding="same" would show later tokens to a causal attention: '
                'use "causal", or an attention with causal=False. '
                'Received: conv_padding="same", and attention with causal=True'
            )
        return conv_padding

    def convolve(self, x, mask, training, segment_ids, state, return_state):
        """Adds the convolution; returns x, its new state, and the attention's state."""
        if self.conv_padding == "same" and (state is not None or return_state):
            raise ValueError(
                "Only a causal convolution has a state: make the block with "
                'conv_padding="causal". Received: '
                f"state={'None' if state is None else 'given'}, "
                f'return_state={return_state}, conv_padding="same"'
            )
        parts = {"convolution": None, "attention": None}
        if state is not None:
            layer_state.check_entries(state, parts)
            parts = state
        found = self.convolution(
            self.convolution_norm(x),
            mask=mask,
            segment_ids=segment_ids,
            state=parts["convolution"],
            return_state=return_state,
        )
        convolved, later = found if return_state else (found, None)
        x += self.dropout(convolved, training=training)
        return x, later, parts["attention"]

    def add(self, x, attended, training=None):
        """Adds the attended values, then applies the feed-forward network."""
        x += self.dropout(attended, training=training)
        return x + self.transformed(x, training)

    def transformed(self, x, training=None):
        """Output of the feed-forward network for each token."""
        hidden = self.contract(self.expand(self.feedforward_norm(x)))
        return self.dropout(hidden, training=training)

    def get_initial_state(
        self, batch_size: int | tf.Tensor, packed: bool = False
    ) -> typing.Any:
        """Returns the state before the first token.

        The state of a block is the state of its attention, `()` without attention. With
        a convolution it is a dict with entries `"convolution"` and `"attention"`.
        Arguments are as in `AttentionLayer`.
        """
        state = ()
        if self.attention is not None:
            state = self.attention.get_initial_state(batch_size, packed)
        if self.convolution is None:
            return state
        of_convolution = self.convolution.get_initial_state(batch_size, packed)
        return {"convolution": of_convolution, "attention": state}

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


@keras.saving.register_keras_serializable(package="keras_performer")
class ShortConvolution(config.TracesSpec, config.KeepsInnerChanges, keras.layers.Layer):
    """Depthwise convolution of `(B, T, dim)` that can continue from a state.

    It computes `keras.layers.DepthwiseConv1D` without bias, and sums in float32. Masked
    tokens and tokens of other segments count as zeros.

        causal      y_i = sum_k kernel_k x_(i - kernel_size + 1 + k)
        otherwise   y_i = sum_k kernel_k x_(i - (kernel_size - 1) // 2 + k)

    Call it like a `PerformerBlock`.

    Example:

    >>> layer = ShortConvolution(2, causal=True)
    >>> layer.build((None, None, 1))
    >>> layer.set_weights([tf.constant([[10.0], [1.0]])])
    >>> layer(tf.constant([[[1.0], [2.0], [3.0]]])).numpy().ravel().tolist()
    [1.0, 12.0, 23.0]
    """

    def __init__(self, kernel_size, causal, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.kernel_size = positive_int("kernel_size", kernel_size)
        self.causal = arguments.boolean("causal", causal)
        # numbers of tokens that a token sees before and after itself
        others = self.kernel_size - 1
        self._before = others if self.causal else others // 2
        self._after = others - self._before

    def build(self, input_shape):
        self.dim = input_shape[-1]
        # uniform in +-1 / sqrt(kernel_size)
        initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        # not cast by Keras, so that its gradient is summed in float32
        shape = self.kernel_size, self.dim
        self.kernel = full_weight(self, "kernel", shape, initializer)

    def call(self, x, mask=None, segment_ids=None, state=None, return_state=False):
        if mask is not None:
            x *= tf.expand_dims(tf.cast(as_mask("mask", mask, x), x.dtype), -1)
        slices = current_slices()
        segments = of_tokens = starts = None
        if segment_ids is not None:
            segment_ids = call_inputs.checked_ids(segment_ids, x)
            # the segment of the state has number 0
            starts = call_inputs.segment_starts(segment_ids, state, slices)
            segments = segment_numbers(starts)
            of_tokens = tf.pad(segments, [[0, 0], [self._before, self._after]])
        if slices is not None:
            tokens, of_tokens = self._with_neighbours(slices, x, segments, starts)
        else:
            before = self.get_initial_state(tf.shape(x)[0]) if state is None else state
            tokens = tf.concat([before["inputs"], x], 1)
            tokens = tf.pad(tokens, [[0, 0], [0, self._after], [0, 0]])
        dtype, length = compute_dtype(x), size(x, 1)
        y = tf.zeros((), dtype)
        for index, weights in enumerate(tf.unstack(tf.cast(self.kernel, dtype))):
            positions = slice(index, index + length)
            y += weights * tf.cast(_seen(tokens, of_tokens, positions, segments), dtype)
        y = tf.cast(y, x.dtype)
        if not return_state:
            return y
        last = None if segments is None else segments[:, -1:]
        inputs = _seen(tokens, of_tokens, slice(length, None), last)
        return y, {"inputs": inputs, **call_inputs.last_segment(segment_ids, state)}

    def before_slice(self, slices, x, numbers=None):
        """Returns the last tokens of the slice before, `(B, tokens before, dim)`.

        x are the last tokens of this slice, masked ones 0, and `numbers` their segment
        numbers, or `None`.
        """
        length = size(x, 1)
        least = self.kernel_size - 1
        check_length(x, least, f"at least kernel_size - 1 = {least} tokens long")
        if numbers is not None:
            x = _seen(x, numbers, slice(None), numbers[:, -1:])
        return slices.neighbour(x[:, length - self._before :])[0]

    def _with_neighbours(self, slices, x, numbers, starts):
        """Returns tokens of a slice between those of its neighbours, and segments."""
        before, after = self.before_slice(slices, x, numbers), x[:, : self._after]
        if numbers is None:
            (after,) = slices.neighbour(after, after=True)
            return tf.concat([before, x, after], 1), None
        # tokens of other segments than the nearest token of the slice are zeros
        after = _seen(x, numbers, slice(self._after), numbers[:, :1])
        after, starts = slices.neighbour(after, starts[:, :1], after=True)
        number = numbers[:, -1:] + tf.cast(starts, numbers.dtype)
        number = tf.tile(number, (1, self._after))
        of_tokens = tf.pad(numbers, [[0, 0], [self._before, 0]])
        of_tokens = tf.concat([of_tokens, number], 1)
        return tf.concat([before, x, after], 1), of_tokens

    def get_initial_state(self, batch_size, packed=False):
        """Returns the state before the first token, a dict of tensors, batch first."""
        batch_size = arguments.batch_size(batch_size)
        shape = batch_size, self._before, self.dim
        state = {"inputs": tf.zeros(shape, self.compute_dtype)}
        if packed:
            state["segment"] = tf.zeros((batch_size,), tf.int64)
        return state


def _seen(tokens, segments, positions, segment):
    """Returns the tokens at some positions, with zeros for tokens of other segments."""
    tokens = tokens[:, positions]
    if segments is None:
        return tokens
    same = tf.cast(segments[:, positions] == segment, tokens.dtype)
    return tokens * same[..., tf.newaxis]
