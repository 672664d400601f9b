"""The attention matrix that a kernel implies: for looking at, quadratic."""

import tensorflow as tf

from keras_performer.ops.bidirectional import bidirectional_attention
from keras_performer.ops.causal import causal_attention


def attention_scores(query, key, kernel, key_mask=None, causal=False):
    """The weights that linear attention gives to each key, in quadratic memory.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; N is a multiple of K.
        kernel: an `ExponentialKernel` or `ActivationKernel`.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys.
        causal: bool, hide later keys.

    Returns:
        Tensor of shape `(B, N, T, S)` in the dtype of `query`. Rows sum to 1, or to 0
        where no key is visible.
    """
    key = tf.convert_to_tensor(key)
    batch_size, length = tf.unstack(tf.shape(key)[:2])
    # the output for one-hot values is the weight of each key
    value = tf.eye(length, dtype=key.dtype)[tf.newaxis, :, tf.newaxis]
    value = tf.tile(value, (batch_size, 1, key.shape[2], 1))
    value = tf.ensure_shape(value, (*key.shape[:3], key.shape[1]))
    if causal:
        scores, _ = causal_attention(query, key, value, kernel, key_mask)
    else:
        scores = bidirectional_attention(query, key, value, kernel, key_mask)
    return tf.transpose(scores, (0, 2, 1, 3))
