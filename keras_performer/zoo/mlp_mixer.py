"""MLP-Mixer: a network across positions in place of attention."""

import functools
import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.arguments import positive_int
from keras_performer.layers.dense import full_weight
from keras_performer.layers.mixing import HadHiddenDim, MixingLayer, zero_masked
from keras_performer.ops.shapes import compute_dtype, size


@keras.saving.register_keras_serializable(package="keras_performer")
class TokenMixing(HadHiddenDim, MixingLayer):
    """MLP-Mixer's token mixing: one feed-forward network over the tokens.

        h_kc = gelu(sum_s expand_kernel_sk x_sc + expand_bias_k)
        y_tc = sum_k contract_kernel_kt h_kc + contract_bias_t

    Weights belong to positions. Sequences shorter than `max_length` use the first
    positions. Masked tokens count as zeros. So padding on the right changes nothing;
    padding on the left moves tokens to other weights.

    Args:
        max_length: int, maximal length of a sequence.
        intermediate_dim: int, width of the network. The paper calls it D_S and makes it
            about as large as the length.
        causal: bool, must be false: each output depends on all tokens. Defaults to
            `False`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments and returns: as in `MixingLayer`.

    Raises:
        ValueError: if a sequence is longer than `max_length`
            (`tf.errors.InvalidArgumentError` in graphs of unknown length), and as in
            `MixingLayer`.

    Reference:
        Tolstikhin et al. 2021, MLP-Mixer, arXiv 2105.01601, section 2, equation 1.
        `PerformerBlock` adds the paper's normalization and residual.

    Example:

    >>> layer = TokenMixing(max_length=100, intermediate_dim=32)
    >>> layer(keras.ops.ones((1, 80, 16))).shape
    TensorShape([1, 80, 16])
    """

    def __init__(
        self,
        max_length: int,
        intermediate_dim: int,
        *,
        causal: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(causal=causal, **kwargs)
        self.max_length = positive_int("max_length", max_length)
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)

    def build(self, input_shape):
        add = functools.partial(full_weight, self)
        length, hidden = self.max_length, self.intermediate_dim
        random, zeros = "glorot_uniform", "zeros"
        self.expand_kernel = add("expand_kernel", (length, hidden), random)
        self.expand_bias = add("expand_bias", (hidden,), zeros)
        self.contract_kernel = add("contract_kernel", (hidden, length), random)
        self.contract_bias = add("contract_bias", (length,), zeros)

    def mix(self, x, mask, training=None):
        length = arguments.up_to_max_length(self, size(x, 1))
        dtype = compute_dtype(x)
        tokens = tf.cast(zero_masked(x, mask), dtype)
        kernel, bias = self.expand_kernel[:length], self.expand_bias
        hidden = tf.einsum("bsc,sk->bck", tokens, tf.cast(kernel, dtype))
        hidden = keras.activations.gelu(hidden + tf.cast(bias, dtype))
        kernel, bias = self.contract_kernel[:, :length], self.contract_bias[:length]
        mixed = tf.einsum("bck,kt->btc", hidden, tf.cast(kernel, dtype))
        mixed += tf.cast(bias, dtype)[:, tf.newaxis]
        return tf.cast(mixed, x.dtype)
