"""Exact softmax attention, quadratic in the length, for short inputs."""

import tensorflow as tf

from keras_performer.ops.blocks import size


def by_length(exact_below, exact, linear, inputs, constants):
    """`exact(*inputs, *constants)` for fewer keys than `exact_below`, else `linear`.

    Args:
        exact_below: int, or `None` for never.
        exact, linear: functions of the tensors that follow, with outputs alike.
        inputs: tuple of query, key and, if the functions take one, value, tensors of
            shape `(B, T or S, heads, dim)`. If S is known only when a graph runs, that
            is when the choice is made.
        constants: tuple of further arguments, to which no gradient flows; each a tensor
            or `None`.
    """
    if exact_below is None:
        return linear(*inputs, *constants)
    is_short = size(inputs[1], 1) < exact_below
    if isinstance(is_short, bool):
        return (exact if is_short else linear)(*inputs, *constants)

    # The backward pass computes its branch again: tensors of unknown shape that go from
    # a branch to its gradient are what XLA cannot compile. And a branch takes copies:
    # under several tapes its gradient must hold tensors of the branch only.
    @tf.custom_gradient
    def choose(*inputs):
        def gradient(doutput):
            def pull(function):
                copies = _copies(inputs)
                with tf.GradientTape() as tape:
                    tape.watch(copies)
                    output = function(*copies, *_copies(constants))
                return tape.gradient(output, copies, tf.identity(doutput))

            return tf.cond(is_short, lambda: pull(exact), lambda: pull(linear))

        def push(function):
            return function(*_copies(inputs), *_copies(constants))

        return tf.cond(is_short, lambda: push(exact), lambda: push(linear)), gradient

    return choose(*inputs)


def _copies(tensors):
    return [None if x is None else tf.identity(x) for x in tensors]


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
