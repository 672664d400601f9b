"""Attention to the tokens that share a bucket."""

import tensorflow as tf

from keras_performer.ops.checks import check_attention_inputs, check_window
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.local.recent import reach_within
from keras_performer.ops.lsh.buckets import near, num_rows, places
from keras_performer.ops.lsh.loops import attend_in_rounds
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


def lsh_attention(
    query: TensorLike,
    value: TensorLike,
    buckets: TensorLike,
    sliding_window: int,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
) -> tf.Tensor:
    """Softmax attention to the other tokens that share a bucket in some round.

    Keys are the queries divided by their lengths. Query i sees key j if in some round
    both are in one bucket, fewer than `sliding_window` places apart. Places count the
    tokens of that bucket which are not masked. A key counts once, in however many
    rounds it is found. A query that sees no other key has its own value.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        value: tensor of shape `(B, T, N, V)`.
        buckets: int tensor of shape `(B, T, N, rounds)`, as `lsh_buckets` makes it.
        sliding_window: int W, how near in its bucket a key is that is seen.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible tokens; or a
            `Visibility`. What is masked sees nothing either: its key is its query.
        causal: bool, hide later keys.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 for masked tokens.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, equations 4, 6 and 12. The
        window stands for the chunks of equation 5, whose borders move with tokens of
        other buckets, and with later ones.

    Example:

    >>> x = tf.constant([[[[2.0]], [[-1.0]], [[1.0]], [[3.0]]]])
    >>> buckets = tf.cast(x < 0, tf.int32)
    >>> seen = lsh_attention(x, x, buckets, sliding_window=2, causal=True)
    >>> seen[0, :, 0, 0].numpy().tolist()
    [2.0, -1.0, 2.0, 1.0]
    """
    query, value = (tf.convert_to_tensor(x) for x in (query, value))
    visible, window = _checked(query, value, buckets, sliding_window, key_mask, causal)
    tokens = places(buckets, window, visible)
    x, v = _rows(query), _rows(value)
    options = window, visible.causal
    attended, log_sums = attend_in_rounds(x, _unit(x), v, tokens, *options)
    alone, seen = log_sums < EMPTY / 2, tokens[0][..., tf.newaxis, tf.newaxis]
    attended = tf.where(alone, tf.cast(v, attended.dtype), attended)
    attended = tf.where(seen, attended, tf.zeros_like(attended))
    return tf.cast(_from_rows(attended, value), query.dtype)


def lsh_scores(
    query: TensorLike,
    buckets: TensorLike,
    sliding_window: int,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
) -> tf.Tensor:
    """The weights of `lsh_attention`, `(B, N, T, T)` in the dtype of `query`."""
    query = tf.convert_to_tensor(query)
    visible, window = _checked(query, query, buckets, sliding_window, key_mask, causal)
    seen, codes, _ = places(buckets, window, visible)
    pairs = codes[:, :, tf.newaxis], codes[:, tf.newaxis]
    sees = tf.reduce_any(near(*pairs, window, visible.causal), -1)
    both = tf.logical_and(seen[:, :, tf.newaxis], seen[:, tf.newaxis])
    sees = tf.logical_and(sees, both)
    own = tf.linalg.set_diag(tf.zeros_like(both), seen)
    sees = tf.where(tf.reduce_any(sees, -1, keepdims=True), sees, own)
    x = _rows(query)
    logits = tf.einsum("xtnh,xsnh->xts", tf.cast(x, _unit(x).dtype), _unit(x))
    logits *= query.shape[3] ** -0.5
    weights = tf.nn.softmax(tf.where(sees, logits, logits.dtype.min))
    weights = tf.where(sees, weights, tf.zeros_like(weights))
    length = size(query, 1)
    shape = size(query, 0), query.shape[2], length, length
    return tf.cast(tf.reshape(weights, shape), query.dtype)


def _checked(query, value, buckets, window, key_mask, causal):
    """The `Visibility` and the window, no longer than a length that is known, if inputs
    are those of one attention.
    """
    visible = Visibility.of(key_mask, causal)
    check_attention_inputs(query, query, value, visible)
    check_window("sliding_window", window, query, value)
    shape = tf.convert_to_tensor(buckets).shape
    if shape.rank != 4 or not shape[:3].is_compatible_with(query.shape[:3]):
        raise ValueError(
            "buckets must have shape (batch, length, heads, rounds), as lsh_buckets "
            f"makes them of the query. Received: buckets of shape {tuple(shape)} and "
            f"query of shape {tuple(query.shape)}"
        )
    return visible, reach_within(window, query, None) + 1


def _rows(x):
    """`(B, T, N, dim)` to one head, `(B N, T, 1, dim)`."""
    shape = num_rows(x, x.shape[2]), size(x, 1), 1, x.shape[3]
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), shape)


def _from_rows(rows, like):
    """The inverse of `_rows`, of the shape of `like`."""
    shape = size(like, 0), like.shape[2], size(like, 1), like.shape[3]
    return tf.transpose(tf.reshape(rows, shape), (0, 2, 1, 3))


def _unit(x):
    """Keys of queries: their directions."""
    return tf.math.l2_normalize(tf.cast(x, compute_dtype(x)), -1)
