"""The state of linear attention: everything that later queries need of earlier keys.

For every feature, a state holds the largest log-feature of the keys so far, and the
sums of values, with a column of ones, weighted by the feature.
"""

import typing

import tensorflow as tf

from keras_performer.ops.checks import (
    check_no_segments,
    check_no_window,
    check_not_causal,
)
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY, Kernel
from keras_performer.ops.kernels.parts import (
    each,
    join,
    over_features,
    over_rows,
    split,
)
from keras_performer.ops.normalizer import normalize, with_ones
from keras_performer.ops.shapes import compute_dtype
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


class State(typing.NamedTuple):
    """The state of linear attention: sums over the keys so far.

    Attributes:
        running_max: tensor `(B, K, M)`, the largest log-feature so far. Kernels without
            a stabilizer do not change it, except with `decay`: it is then the log-scale
            of the sums.
        sums: tensor `(B, K, V + 1, M)`, sums of values and of ones, weighted by the
            features divided by `exp(running_max)`.
    """

    running_max: tf.Tensor
    sums: tf.Tensor


def initial_state(
    batch_size: int | tf.Tensor,
    num_key_value_heads: int,
    num_features: int,
    value_dim: int | tf.Tensor,
    dtype: str | tf.DType = "float32",
) -> State:
    """Returns the state before the first token.

    Args:
        batch_size: int or scalar tensor B.
        num_key_value_heads: int K.
        num_features: int M.
        value_dim: int V.
        dtype: "float32", or "float64" for float64 inputs. Defaults to `"float32"`.

    Returns:
        `State(running_max, sums)`, tensors of shapes `(B, K, M)` and `(B, K, V + 1,
        M)`.
    """
    shape = (batch_size, num_key_value_heads)
    return State(
        tf.fill((*shape, num_features), tf.constant(EMPTY, dtype)),
        tf.zeros((*shape, value_dim + 1, num_features), dtype),
    )


def absorb_keys(
    key: tf.Tensor,
    value: tf.Tensor,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None,
    state: State,
) -> State:
    """Adds keys to the state of attention; all later queries see these keys.

    `absorb_keys` and `answer_queries` compute `bidirectional_attention` in two passes
    over a sequence that comes in pieces. TensorFlow's tape computes the gradients, so
    memory grows with the length of the piece times M.

    Args:
        key: tensor of shape `(B, S, K, H)`.
        value: tensor of shape `(B, S, K, V)`.
        kernel: as in `bidirectional_attention`.
        key_mask: bool tensor of shape `(B, S)`, true for visible keys, a `Visibility`,
            or `None`.
        state: from `initial_state` or from earlier keys.

    Returns:
        The `State`, of the same shapes.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 6, 1, 2), seed=(0, 2))
    >>> state = ops.initial_state(1, 1, 8, 2)
    >>> for piece in tf.split(x, 3, axis=1):
    ...     state = absorb_keys(piece, piece, kernel, None, state)
    >>> difference = answer_queries(x, kernel, state) - ops.bidirectional_attention(
    ...     x, x, x, kernel)
    >>> bool(tf.reduce_max(tf.abs(difference)) < 1e-5)
    True
    """
    heads, kernel, r, sums = _one_block(key, key, value, kernel, state)
    visible = Visibility.of(key_mask)
    check_not_causal("absorb_keys", visible)
    check_no_window(visible)
    check_no_segments("absorb_keys", visible)
    mask = visible.key_mask
    mask = heads.mask_rows(None if mask is None else mask[:, tf.newaxis], 0)
    b = kernel.project_keys(heads.key_rows(key[:, tf.newaxis], 0), mask)
    v = with_ones(heads.key_rows(value[:, tf.newaxis], 0))
    return State(*heads.state(*map(join, absorb(kernel, b, v, r, sums, mask))))


def answer_queries(query: tf.Tensor, kernel: Kernel, state: State) -> tf.Tensor:
    """Computes attention of queries to all keys in the state.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        kernel: as in `bidirectional_attention`.
        state: from `absorb_keys`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`.
    """
    key_shape = state[0][:, tf.newaxis]  # (B, 1, K, M): `Heads` reads axis 2
    heads, kernel, r, sums = _one_block(query, key_shape, query, kernel, state)
    a = kernel.project_queries(heads.query_rows(query[:, tf.newaxis], 0))
    features, _ = kernel.query_features(a, r)
    output = normalize(over_features(features, sums))
    return heads.query_block(tf.cast(output, query.dtype))


def absorb(kernel, b, v, r, sums, mask):
    """Returns the stabilizer and the sums after another block of keys.

    Args:
        kernel: a `Kernel`.
        b: projected keys, parts `(X, tokens, M / num_parts)`.
        v: values with a column of ones, `(X, tokens, V + 1)`.
        r: stabilizer before the block, parts `(X, 1, M / num_parts)`.
        sums: sums before the block, parts `(X, V + 1, M / num_parts)`.
        mask: bool tensor `(X, tokens, 1)`, true for visible keys, or `None`.
    """
    r_new = each(tf.stop_gradient, kernel.running_max(r, b))
    added = over_rows(v, kernel.key_features(b, r_new, mask))
    sums = each(tf.multiply, sums, kernel.rescale(r, r_new))
    return r_new, each(tf.add, sums, added)


def _one_block(query, key, value, kernel, state):
    heads = Heads(query, key, value)
    kernel.check_heads(heads.num_key_value_heads)
    kernel = kernel.astype(compute_dtype(query, key, value))
    r, sums = heads.state_rows(state)
    r, sums = (split(x, kernel.num_parts) for x in (tf.stop_gradient(r), sums))
    return heads, kernel, r, sums
