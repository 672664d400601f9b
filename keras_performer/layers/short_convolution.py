"""A convolution over a few neighbouring tokens, each channel by itself."""

import keras
import tensorflow as tf

from keras_performer.layers import arguments, packed_tokens
from keras_performer.layers.key_masks import as_mask
from keras_performer.layers.unbuilt import SaysWhenUnbuilt
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import compute_dtype, size


@keras.saving.register_keras_serializable(package="keras_performer")
class ShortConvolution(SaysWhenUnbuilt, keras.layers.Layer):
    """A depthwise convolution of `(B, T, dim)` that can go through it in pieces.

    `keras.layers.DepthwiseConv1D` without bias, of which a sequence can be continued, a
    masked token and tokens of other segments count as zeros, and sums are in float32.

        causal      y_i = sum_k kernel_k x_(i - kernel_size + 1 + k)
        otherwise   y_i = sum_k kernel_k x_(i - (kernel_size - 1) // 2 + k)

    Args:
        kernel_size: int, the number of tokens that a token sees.
        causal: bool, whether these are itself and the ones before it.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: tensor of shape `(B, T, dim)`.
        mask: bool tensor `(B, T)`, false for padding.
        segment_ids: int tensor `(B, T)`, as in `AttentionLayer`.
        state: the state after earlier tokens (causal only), from `initial_state` or an
            earlier call.
        return_state: bool, also return the state after the last token.

    Returns:
        Tensor of shape `(B, T, dim)`, or `(tensor, state)`.

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
        self.kernel_size = arguments.positive_int("kernel_size", kernel_size)
        self.causal = arguments.boolean("causal", causal)
        # how many tokens before and after its own a token sees
        others = self.kernel_size - 1
        self._before = others if self.causal else others // 2
        self._after = others - self._before

    def build(self, input_shape):
        self.dim = input_shape[-1]
        # uniform in +-1 / sqrt(kernel_size)
        initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        # in float32, in which its gradient is summed
        self.kernel = self.add_weight(
            shape=(self.kernel_size, self.dim),
            initializer=initializer,
            autocast=False,
            name="kernel",
        )

    def call(self, x, mask=None, segment_ids=None, state=None, return_state=False):
        if mask is not None:
            x *= tf.expand_dims(tf.cast(as_mask("mask", mask, x), x.dtype), -1)
        segments = of_tokens = None
        if segment_ids is not None:
            segment_ids = packed_tokens.checked_ids(segment_ids, x)
            # counted from that of the state, which is 0
            starts = packed_tokens.segment_starts(segment_ids, state)
            segments = segment_numbers(starts)
            of_tokens = tf.pad(segments, [[0, 0], [self._before, self._after]])
        before = self.initial_state(tf.shape(x)[0]) if state is None else state
        tokens = tf.concat([before["inputs"], x], 1)
        tokens = tf.pad(tokens, [[0, 0], [0, self._after], [0, 0]])
        dtype, length = compute_dtype(x), size(x, 1)
        y = tf.zeros((), dtype)
        for index, weights in enumerate(tf.unstack(tf.cast(self.kernel, dtype))):
            places = slice(index, index + length)
            y += weights * tf.cast(_seen(tokens, of_tokens, places, segments), dtype)
        y = tf.cast(y, x.dtype)
        if not return_state:
            return y
        last = None if segments is None else segments[:, -1:]
        inputs = _seen(tokens, of_tokens, slice(length, None), last)
        return y, {"inputs": inputs, **packed_tokens.last_segment(segment_ids, state)}

    def initial_state(self, batch_size, packed=False):
        """The state before the first token: a dict of tensors, batch first."""
        shape = batch_size, self._before, self.dim
        state = {"inputs": tf.zeros(shape, self.compute_dtype)}
        if packed:
            state["segment"] = tf.zeros((batch_size,), tf.int64)
        return state

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, *args, **kwargs):
        # by tracing `call`: it may also return a state
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        config = super().get_config()
        return {**config, "kernel_size": self.kernel_size, "causal": self.causal}


def _seen(tokens, segments, places, segment):
    """Tokens at some places, zeros in the place of those of another segment."""
    tokens = tokens[:, places]
    if segments is None:
        return tokens
    same = tf.cast(segments[:, places] == segment, tokens.dtype)
    return tokens * same[..., tf.newaxis]
