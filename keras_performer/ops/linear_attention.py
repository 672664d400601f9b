"""Linear attention, causal or bidirectional, with or without an exact window."""

import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear.bidirectional import bidirectional_attention
from keras_performer.ops.linear.causal import causal_attention
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility
from keras_performer.ops.windowed import windowed_attention


def linear_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    visible: Visibility,
    exact_window: int | None = None,
    log_gain: TensorLike | None = None,
    state: typing.Any = None,
    chunk_size: int | None = None,
    *,
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, typing.Any]:
    """Calls the windowed, causal or bidirectional attention that the arguments need.

    Arguments and results are as there. `visible` says whether attention is causal,
    `exact_window` is `None` for no window, and the returned state is `None` unless
    causal.
    """
    inputs = query, key, value, kernel
    options: dict[str, typing.Any] = {"decay": decay, "jit_compile": jit_compile}
    if exact_window is not None:
        return windowed_attention(
            *inputs, exact_window, log_gain, visible, state, chunk_size, **options
        )
    if visible.causal:
        return causal_attention(*inputs, visible, state, chunk_size, **options)
    return bidirectional_attention(*inputs, visible, **options), None
