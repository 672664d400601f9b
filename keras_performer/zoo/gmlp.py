"""gMLP: a spatial gating unit in place of attention."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.arguments import positive_int
from keras_performer.layers.dense import full_weight, token_dense
from keras_performer.layers.mixing import HadHiddenDim, MixingLayer, zero_masked
from keras_performer.ops.shapes import compute_dtype, size


@keras.saving.register_keras_serializable(package="keras_performer")
class SpatialGatingUnit(HadHiddenDim, MixingLayer):
    """gMLP's gate: multiplies half of the channels by a mix of the others over tokens.

        z1, z2 = gelu(expand(x)), cut in two along the channels
        y = contract(z1 * (W norm(z2) + b))

    with the dense layers `expand` (U in the paper) and `contract` (V). The weight
    `spatial_kernel`, W, starts close to 0, and `spatial_bias`, b, starts at 1, so that
    the layer first processes each token by itself. The paper's block,
    `x + contract(...)` of a normalized x, is the first half of a `PerformerBlock`.

    W weighs tokens by position. Sequences shorter than `max_length` use the first
    positions. Masked tokens are set to zero after the norm. So padding on the right
    changes nothing; padding on the left moves tokens to other weights.

    Args:
        max_length: int, maximal length of a sequence.
        intermediate_dim: int, number of channels before the cut in two; must be even.
            The paper uses the usual width of a feed-forward network.
        causal: bool, hide later tokens: W is triangular. Defaults to `False`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments and returns: as in `MixingLayer`.

    Raises:
        ValueError: if a sequence is longer than `max_length`
            (`tf.errors.InvalidArgumentError` in graphs of unknown length), and as in
            `MixingLayer`.

    Reference:
        Liu et al. 2021, Pay attention to MLPs, arXiv 2105.08050, section 2.

    Example:

    >>> layer = SpatialGatingUnit(max_length=100, intermediate_dim=32, causal=True)
    >>> layer(keras.ops.ones((1, 80, 16))).shape
    TensorShape([1, 80, 16])
    """

    supports_causal = True
    cost = "L^2"

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
        if self.intermediate_dim % 2:
            raise ValueError(
                "intermediate_dim must be even, as one half of the channels gates the "
                f"other. Received: intermediate_dim={intermediate_dim}"
            )

    def build(self, input_shape):
        dim, width, dtype = input_shape[-1], self.intermediate_dim, self.dtype_policy
        self.expand = token_dense("expand", width, dtype=dtype, activation="gelu")
        self.expand.build((None, None, dim))
        self.norm = keras.layers.LayerNormalization(dtype=dtype, name="norm")
        self.norm.build((*input_shape[:-1], width // 2))
        self.contract = token_dense("contract", dim, dtype=dtype)
        self.contract.build((None, None, width // 2))
        # "near zero" in the paper; here the weights of a token sum to at most 1e-3
        bound = 1e-3 / self.max_length
        uniform = keras.initializers.RandomUniform(-bound, bound)
        shape = self.max_length, self.max_length
        self.spatial_kernel = full_weight(self, "spatial_kernel", shape, uniform)
        self.spatial_bias = full_weight(self, "spatial_bias", shape[:1], "ones")

    def mix(self, x, mask, training=None):
        length = arguments.up_to_max_length(self, size(x, 1))
        dtype = compute_dtype(x)
        content, gate = tf.split(self.expand(x), 2, axis=-1)
        gate = tf.cast(zero_masked(self.norm(gate), mask), dtype)
        kernel = tf.cast(self.spatial_kernel[:length, :length], dtype)
        if self.causal:
            kernel = tf.linalg.band_part(kernel, -1, 0)
        bias = tf.cast(self.spatial_bias[:length, tf.newaxis], dtype)
        gate = tf.einsum("ts,bsc->btc", kernel, gate) + bias
        return self.contract(content * tf.cast(gate, content.dtype))
