"""FNet: a Fourier transform in place of attention."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.mixing import MixingLayer, zero_masked
from keras_performer.ops.shapes import compute_dtype, size


@keras.saving.register_keras_serializable(package="keras_performer")
class FourierMixing(MixingLayer):
    """FNet mixing: the real part of a Fourier transform over tokens and features.

        y_tc = Re sum_sd exp(-2 pi i (t s / T + c d / dim)) x_sd

    The layer has no weights. Masked tokens count as zeros. Frequencies depend on the
    padded length, so the same tokens with more padding give other outputs: always pad
    to one length. In float16 and bfloat16 the transform is computed in float32 and then
    cast. In float16, large sums overflow to infinity; `norm="ortho"` avoids this.

    Args:
        norm: "backward", the formula above, as in the paper; or "ortho", as in
            `numpy.fft.fft2`: divided by `sqrt(T * dim)`, so that the output is about as
            large as the input. Use "ortho" for normalized inputs, as in
            `PerformerBlock`, so that all parts of a block have similar magnitudes.
            Defaults to `"backward"`.
        causal: bool, must be false: each output depends on all tokens. Defaults to
            `False`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments, returns and raises: as in `MixingLayer`.

    Reference:
        Lee-Thorp et al. 2021, FNet, arXiv 2105.03824, section 3.2, equation 3.

    Example:

    >>> x = tf.constant([[[1.0], [2.0], [4.0]]])
    >>> FourierMixing()(x).numpy().ravel()
    array([ 7., -2., -2.], dtype=float32)
    """

    cost = "L log L"

    def __init__(
        self,
        norm: typing.Literal["backward", "ortho"] = "backward",
        *,
        causal: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(causal=causal, **kwargs)
        self.norm = arguments.one_of("norm", norm, ("backward", "ortho"))

    def mix(self, x, mask, training=None):
        dtype = compute_dtype(x)
        real = tf.cast(zero_masked(x, mask), dtype)
        # Not rfft2d: its gradient takes ten times as long.
        mixed = tf.math.real(tf.signal.fft2d(tf.complex(real, tf.zeros_like(real))))
        if self.norm == "ortho":
            mixed *= tf.math.rsqrt(tf.cast(size(x, 1) * size(x, 2), dtype))
        return tf.cast(mixed, x.dtype)
