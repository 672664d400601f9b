"""Exact attention at some queries, beside which estimates stand."""

import typing

import numpy as np
import tensorflow as tf

from keras_performer.ops.checks import check_window


class ExactRows(typing.NamedTuple):
    """What exact attention says at some queries, "rows".

    Attributes:
        query: tensor `(B, rows, N, H)`.
        value: tensor `(B, S, N, V)`, the values of each query head.
        logits: tensor `(B, N, rows, S)`.
        seen: bool tensor `(B, N, rows, S)`, which keys they see.
        distance: int array `(rows, S)`, how many places off keys are.
        near: bool tensor `(B, N, rows, S)`, which keys they see in the exact window.
        weights: tensor `(B, N, rows, S)`, the softmax of the logits.
        output: tensor `(B, N, rows, V)`.
        counted: bool tensor `(B, N, rows)`, the rows that are there and see a key.
    """

    query: tf.Tensor
    value: tf.Tensor
    logits: tf.Tensor
    seen: tf.Tensor
    distance: np.ndarray
    near: tf.Tensor
    weights: tf.Tensor
    output: tf.Tensor
    counted: tf.Tensor


def exact_rows(query, key, value, inputs, num_rows, exact_window):
    """The `ExactRows` of one call of attention.

    Args:
        query, key, value: float32 tensors in heads, `(B, T, N, H)`, `(B, S, K, H)` and
            `(B, S, K, V)`.
        inputs: the `Inputs` of the layer.
        num_rows: int, of how many queries of a sequence.
        exact_window: int, which keys are near, or `None`.
    """
    if exact_window is not None:
        check_window("exact_window", exact_window, query, key)
    length, num_keys = query.shape[1], key.shape[1]
    rows = np.unique(np.linspace(0, length - 1, num_rows).astype(int))
    query = tf.gather(query, rows, axis=1)
    logits = logits_of(query, key)
    seen = inputs.visible.rows(rows, num_keys)[:, tf.newaxis]
    seen = tf.broadcast_to(seen, tf.shape(logits))
    distance = np.abs(rows[:, np.newaxis] - np.arange(num_keys))
    weights = tf.nn.softmax(tf.where(seen, logits, logits.dtype.min))
    value = tf.repeat(value, query.shape[2] // value.shape[2], axis=2)
    counted = tf.reduce_any(seen, -1)
    if inputs.query_mask is not None:
        counted &= tf.gather(inputs.query_mask, rows, axis=1)[:, tf.newaxis]
    return ExactRows(
        query=query,
        value=value,
        logits=logits,
        seen=seen,
        distance=distance,
        near=seen & (distance < (exact_window or 0)),
        weights=weights,
        output=over_values(weights, value),
        counted=counted,
    )


def logits_of(query, key):
    """q . k / sqrt(H), `(B, N, rows, S)`."""
    keys = tf.repeat(key, query.shape[2] // key.shape[2], axis=2)
    return tf.einsum("brnh,bsnh->bnrs", query * query.shape[3] ** -0.5, keys)


def over_values(weights, value):
    """Sums `(B, N, rows, V)` of the values that stand in `ExactRows`."""
    return tf.einsum("bnrs,bsnv->bnrv", weights, value)
