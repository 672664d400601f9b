"""The attention matrix that a kernel implies, at quadratic cost."""

import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear_attention import linear_attention
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


def attention_scores(
    query: TensorLike,
    key: TensorLike,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
    exact_window: int | None = None,
    log_gain: TensorLike | None = None,
    *,
    decay: TensorLike | None = None,
) -> tf.Tensor:
    """Returns the weight of each key in linear attention, in quadratic memory.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; N is a multiple of K.
        kernel: a `Kernel`.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys; or a
            `Visibility`. Defaults to `None`.
        causal: bool, whether to hide later keys. Defaults to `False`.
        exact_window, log_gain: as in `windowed_attention`; `None` for no window.
            Defaults to `None`.
        decay: as in `causal_attention` and `bidirectional_attention`. Defaults to
            `None`.

    Returns:
        Tensor of shape `(B, N, T, S)` in the dtype of `query`. Rows sum to 1, or to 0
        where no key is visible.
    """
    visible = Visibility.of(key_mask, causal)
    key = tf.convert_to_tensor(key)
    batch_size, length = tf.unstack(tf.shape(key)[:2])
    # the output for one-hot values is the weight of each key
    value = tf.eye(length, dtype=key.dtype)[tf.newaxis, :, tf.newaxis]
    value = tf.tile(value, (batch_size, 1, key.shape[2], 1))
    value = tf.ensure_shape(value, (*key.shape[:3], key.shape[1]))
    scores, _ = linear_attention(
        query, key, value, kernel, visible, exact_window, log_gain, decay=decay
    )
    return tf.transpose(scores, (0, 2, 1, 3))
