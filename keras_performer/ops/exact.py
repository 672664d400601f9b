"""Exact softmax attention, quadratic in the length."""

from collections.abc import Callable

import tensorflow as tf

from keras_performer.ops.checks import check_decay
from keras_performer.ops.decays import between, gates
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import TensorLike, compute_dtype, size, sizes
from keras_performer.ops.visibility import Visibility, without_hidden


def exact_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
    dropout: Callable[[tf.Tensor], tf.Tensor] | None = None,
    *,
    decay: TensorLike | None = None,
) -> tf.Tensor:
    """Computes softmax attention as `keras.layers.MultiHeadAttention` does.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, S, K, V)`.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys; or a
            `Visibility`. Defaults to `None`.
        causal: bool, whether to hide later keys. Defaults to `False`.
        dropout: function that drops some of the weights `(B, N, T, S)`, float32 or
            float64. Defaults to `None`.
        decay: as in `causal_attention` and `bidirectional_attention`. Defaults to
            `None`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 where no key is
        visible. The softmax is float32, or float64 for float64 inputs.

    Reference:
        Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762, equation 1.

    Example:

    >>> x = tf.random.stateless_normal((1, 5, 1, 2), seed=(0, 2))
    >>> float(exact_attention(x, x, tf.ones((1, 5, 1, 3)))[0, 0, 0, 0])
    1.0
    """
    visible = Visibility.of(key_mask, causal)
    key = without_hidden(tf.convert_to_tensor(key), visible.key_mask)  # may be NaN
    weights = _weights_of(query, key, visible, decay)
    if dropout is not None:
        dropped = dropout(_of_heads(weights, query, key))
        weights = tf.reshape(dropped, tf.shape(weights))
    return tf.cast(_mean(weights, query, value), query.dtype)


def exact_scores(
    query: tf.Tensor,
    key: tf.Tensor,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
    *,
    decay: TensorLike | None = None,
) -> tf.Tensor:
    """Returns the weights of `exact_attention`, `(B, N, T, S)` in `query`'s dtype."""
    weights = _weights_of(query, key, Visibility.of(key_mask, causal), decay)
    return tf.cast(_of_heads(weights, query, key), query.dtype)


def attend_to_seen(query, key, value, seen):
    """Computes exact attention with any mask `(B, T, S)`, or broadcastable to it.

    The result, `(B, T, N, V)`, is float32, or float64 for such queries; 0 where no key
    is seen.
    """
    weights, _ = _weights(query, key, seen[:, tf.newaxis])
    return _mean(weights, query, value)


def attend_with_log_sums(query, key, value, seen):
    """Returns the output of `attend_to_seen`, and its log-sums `(B, T, N, 1)`.

    Log-sums of queries that see no key are close to the lowest float.
    `normalizer.joined` takes both results.
    """
    weights, logits = _weights(query, key, seen[:, tf.newaxis])
    log_sums = tf.transpose(tf.reduce_logsumexp(logits, -1), (0, 3, 1, 2))
    log_sums = tf.reshape(log_sums, (*_shape(query), 1))
    return _mean(weights, query, value), log_sums


def _weights_of(query, key, visible, decay):
    """Returns the weights of `_weights` for a `Visibility` and optional log-decays."""
    seen = None
    if visible.hides_keys():
        matrix = visible.matrix(size(query, 1), size(key, 1))
        seen = matrix[:, tf.newaxis]
    decay = check_decay(decay, query, key)
    # without a mask a query sees at least one key
    weights, _ = _weights(query, key, seen, decay, visible.key_mask is not None)
    return weights


def _of_heads(weights, query, key):
    """Reshapes the weights of `_weights` to `(B, N, T, S)`."""
    shape = (size(query, 0), query.shape[2], size(query, 1), size(key, 1))
    return tf.reshape(weights, shape)


def _shape(query):
    return size(query, 0), size(query, 1), query.shape[2]


def _mean(weights, query, value):
    """Averages values with the weights of `_weights`, `(B, T, N, V)`."""
    batch, num_heads, groups, *rest = sizes(weights)
    rows = tf.reshape(weights, (batch, num_heads, groups * rest[0], rest[1]))
    value = tf.transpose(tf.cast(value, weights.dtype), (0, 2, 1, 3))
    attended = tf.matmul(rows, value)
    shape = batch, num_heads, groups, rest[0], value.shape[3]
    attended = tf.transpose(tf.reshape(attended, shape), (0, 3, 1, 2, 4))
    return tf.reshape(attended, (*_shape(query), value.shape[3]))


def _weights(query, key, seen, decay=None, may_see_none=True):
    """Returns weights, and logits, which are the lowest float for unseen keys.

    Both are `(B, K, N / K, T, S)` in float32, or float64 for such queries; `seen` is
    `(B, K, T, S)`, or broadcastable to it, or `None` if all queries see all keys.
    `may_see_none` says whether a query may see no key.
    """
    dtype = compute_dtype(query)
    length, heads, key_dim = size(query, 1), query.shape[2], query.shape[3]
    groups = key.shape[2], heads // key.shape[2]
    shape = (size(query, 0), length, *groups, key_dim)  # -1 fails for empty axes
    query = tf.reshape(tf.cast(query, dtype) * key_dim**-0.5, shape)
    # transposes queries and keys, which are smaller than the logits
    query = tf.transpose(query, (0, 2, 3, 1, 4))
    rows = shape[0], groups[0], groups[1] * length, key_dim
    key = tf.transpose(tf.cast(key, dtype), (0, 2, 1, 3))
    logits = tf.matmul(tf.reshape(query, rows), key, transpose_b=True)
    logits = tf.reshape(logits, (shape[0], *groups, length, size(key, 2)))
    if decay is not None:
        found = gates(tf.transpose(decay, (0, 2, 1))[..., tf.newaxis], dtype)
        decays = between(found, size(found, 2), after=0)
        kept = decays > EMPTY
        seen = kept if seen is None else tf.logical_and(seen, kept)
        logits += decays[:, :, tf.newaxis]
    if seen is None:
        return tf.nn.softmax(logits), logits
    seen = seen[:, :, tf.newaxis]
    # not -inf, whose softmax is NaN where no key is visible
    logits = tf.where(seen, logits, dtype.min)
    weights = tf.nn.softmax(logits)
    if may_see_none:
        weights = tf.where(seen, weights, tf.zeros_like(weights))
    return weights, logits
