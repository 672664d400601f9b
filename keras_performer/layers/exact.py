"""Exact softmax attention, quadratic in the length, for short inputs."""

import tensorflow as tf

from keras_performer.ops.blocks import size


def by_length(exact_below, exact, linear, query, key, *value):
    """`exact(query, key, *value)` for fewer keys than `exact_below`, else `linear`.

    Args:
        exact_below: int, or `None` for never.
        exact, linear: functions of the tensors that follow, with outputs alike.
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`. If S is known only when a graph runs, that
            is when the choice is made.
        *value: tensor of shape `(B, S, K, V)`, if the functions take one.
    """
    inputs = (query, key, *value)
    if exact_below is None:
        return linear(*inputs)
    is_short = size(key, 1) < exact_below
    if isinstance(is_short, bool):
        return exact(*inputs) if is_short else linear(*inputs)

    # The backward pass computes its branch again: tensors of unknown shape that go from
    # a branch to its gradient are what XLA cannot compile.
    @tf.custom_gradient
    def choose(*inputs):
        def gradient(doutput):
            def pull(function):
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    output = function(*inputs)
                return tape.gradient(output, inputs, doutput)

            return tf.cond(is_short, lambda: pull(exact), lambda: pull(linear))

        output = tf.cond(is_short, lambda: exact(*inputs), lambda: linear(*inputs))
        return output, gradient

    return choose(*inputs)


def exact_attention(query, key, value, key_mask=None, causal=False):
    """Softmax attention, as `ops.bidirectional_attention` and `causal_attention`.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, S, K, V)`.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys.
        causal: bool, hide later keys.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 where no key is
        visible.
    """
    weights = _weights(query, key, key_mask, causal)
    attended = tf.einsum("bkgts,bskv->btkgv", weights, tf.cast(value, weights.dtype))
    shape = (size(query, 0), size(query, 1), query.shape[2], value.shape[3])
    return tf.cast(tf.reshape(attended, shape), query.dtype)


def exact_scores(query, key, key_mask=None, causal=False):
    """The weights of `exact_attention`, `(B, N, T, S)` in the dtype of `query`."""
    weights = _weights(query, key, key_mask, causal)
    shape = (size(query, 0), query.shape[2], size(query, 1), size(key, 1))
    return tf.cast(tf.reshape(weights, shape), query.dtype)


def _weights(query, key, key_mask, causal):
    """`(B, K, N / K, T, S)` weights; the softmax is float32, or float64 for such."""
    dtype = tf.float64 if query.dtype == tf.float64 else tf.float32
    length, heads, key_dim = size(query, 1), query.shape[2], query.shape[3]
    shape = (-1, length, key.shape[2], heads // key.shape[2], key_dim)
    query = tf.reshape(tf.cast(query, dtype) * key_dim**-0.5, shape)
    logits = tf.einsum("btkgh,bskh->bkgts", query, tf.cast(key, dtype))
    visible = tf.constant(True)
    if key_mask is not None:
        visible = key_mask[:, tf.newaxis, tf.newaxis, tf.newaxis]
    if causal:
        positions = tf.range(length)
        visible = tf.logical_and(visible, positions[:, tf.newaxis] >= positions)
    # not -inf, whose softmax is NaN where no key is visible
    weights = tf.nn.softmax(tf.where(visible, logits, dtype.min))
    return tf.where(visible, weights, tf.zeros_like(weights))
