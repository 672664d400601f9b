"""Errors of estimated attention, and the exact attention that they are measured by."""

import typing

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.checks import check_window
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.pair_weights import pair_weights

# Relative errors of what stands in the place of exact attention; "doubled" is the one
# before it, or features alone without a window, by twice as many random features.
ESTIMATES = "mean", "window", "features", "both", "doubled"


class HeadSums:
    """Sums over calls, an entry for each head.

    The error of an estimate is the root of its squared differences from the exact
    output over the squares of that.
    """

    def __init__(self, num_heads):
        self.squares = np.zeros(num_heads)
        self._num_rows = 0
        self._sums: dict = {}
        self._weights = np.zeros((num_heads, 0))

    def add_exact(self, exact):
        """Adds the output of `ExactRows`, once for all estimates of a call."""
        self._num_rows += np.count_nonzero(exact.counted[:, 0])
        self.squares += _over_rows(tf.reduce_sum(exact.output**2, -1), exact)

    def add(self, name, numbers, exact):
        """Adds a number of each row, `(B, N, rows)`."""
        self._sums[name] = self._sums.get(name, 0.0) + _over_rows(numbers, exact)

    def add_distances(self, exact):
        """Adds the exact weights, by the distance of keys."""
        counted = tf.where(exact.counted[..., tf.newaxis], exact.weights, 0.0)
        of_heads = tf.reduce_sum(counted, 0).numpy()
        distance = exact.distance.ravel()
        length = max(distance.max() + 1, self._weights.shape[1])
        longer = [(0, 0), (0, length - self._weights.shape[1])]
        self._weights = np.pad(self._weights, longer) + [
            np.bincount(distance, weights.ravel(), length) for weights in of_heads
        ]

    def window_with(self, share):
        """The smallest windows, of each head, with a share of all exact weight."""
        within = np.cumsum(self._weights, 1)
        return 1 + np.argmax(within >= share * within[:, -1:], 1)

    def error(self, name):
        """Relative errors by the squared differences added; nan without, or over 0."""
        differences = self._sums.get(name, np.full_like(self.squares, np.nan))
        return np.sqrt(differences / np.where(self.squares, self.squares, np.nan))

    def mean(self, name):
        return self._sums[name] / (self._num_rows or np.nan)


def _over_rows(numbers, exact):
    counted = tf.where(exact.counted, numbers, tf.zeros_like(numbers))
    return tf.reduce_sum(counted, (0, 2)).numpy()


def add_errors(sums, twin, doubled, query, key, value, inputs, num_rows):
    """Adds what one call says of a `PerformerAttention` to a `HeadSums`.

    `doubled` is the same layer with twice as many random features, or `None`.
    """
    exact = exact_rows(query, key, value, inputs, num_rows, twin.exact_window)
    sums.add_exact(exact)
    sums.add_distances(exact)
    number = tf.cast(tf.math.count_nonzero(exact.seen, -1), tf.float32)
    one_of = tf.cast(exact.seen, tf.float32) / tf.maximum(number, 1)[..., tf.newaxis]
    estimates = {"mean": over_values(one_of, exact.value), **_outputs(twin, key, exact)}
    if doubled is not None:
        name = "features" if twin.exact_window is None else "both"
        estimates["doubled"] = _outputs(doubled, key, exact)[name]
    for name, output in estimates.items():
        sums.add(name, tf.reduce_sum((output - exact.output) ** 2, -1), exact)

    mean = tf.reduce_sum(one_of * exact.logits, -1, keepdims=True)
    variance = tf.reduce_sum(one_of * (exact.logits - mean) ** 2, -1)
    near_share = tf.reduce_sum(tf.where(exact.near, exact.weights, 0.0), -1)
    phi = tf.reduce_sum(one_of * _squared_sums(key, exact), -1)
    sums.add("phi", phi, exact)
    sums.add("spread", tf.sqrt(variance), exact)
    sums.add("near_share", near_share, exact)


def _outputs(twin, key, exact):
    """Outputs `(B, N, rows, V)` of what is linear in the length."""
    weights = *pair_weights(exact.query, key, twin.feature_kernel()), exact.value
    features, _ = mean_by_weights(*weights, exact.seen)
    if twin.exact_window is None:
        return {"features": features}
    window, near = mean_by_logits(exact.logits, exact.value, exact.near)
    others, far = mean_by_weights(*weights, exact.seen & ~exact.near)
    far += twin.log_gain[:, tf.newaxis, tf.newaxis]
    both, _ = ops.join_parts((window, near), (others, far))
    return {"window": window, "features": features, "both": both}


def _squared_sums(key, exact):
    """|x + y|^2 of rows and keys with x = q / H^(1/4), y = k / H^(1/4)."""
    query = exact.query
    scale = query.shape[3] ** -0.5

    def squares(x):
        return scale * tf.transpose(tf.reduce_sum(x**2, -1), (0, 2, 1))

    of_keys = squares(tf.repeat(key, query.shape[2] // key.shape[2], axis=2))
    of_pairs = squares(query)[..., tf.newaxis] + of_keys[:, :, tf.newaxis]
    return of_pairs + 2 * exact.logits


# -- Attention of some queries to some keys, by the weight of every key.
#
# For a few queries that is as cheap as the loops, which are linear in the length;
# and the parts of near and far keys serve all gains.


def mean_by_logits(logits, value, seen):
    """Exact attention by logits `(B, N, rows, S)` to the keys that are `seen`, as many.

    Returns:
        `(output, log_sums)` as `ops.join_parts` takes them, `(B, N, rows, V)` and
        `(B, N, rows, 1)`: the mean of the values, and the logarithm of the sum of the
        weights.
    """
    logits = tf.where(seen, logits, EMPTY)
    log_scale = tf.reduce_max(logits, -1, keepdims=True)
    return mean_by_weights(tf.exp(logits - log_scale), log_scale, value, seen)


def mean_by_weights(weights, log_scale, value, seen):
    """The same by the weights of a kernel, the first two as `pair_weights` returns."""
    weights = tf.where(seen, weights, tf.zeros_like(weights))
    sums = tf.reduce_sum(weights, -1, keepdims=True)
    some = sums != 0
    sums = tf.where(some, sums, tf.ones_like(sums))
    log_sums = tf.where(some, log_scale + tf.math.log(tf.abs(sums)), EMPTY)
    return over_values(weights, value) / sums, log_sums


def squares_of_joined(near, far, exact):
    """Errors of two parts under one normalizer, each as `mean_by_logits` returns it.

    They come as a function of what is added to the log-sums of the far part,
    `(N, 1, 1)`: the squared differences from `exact`, the output that the whole ought
    to have, of each row, `(B, N, rows)`.
    """
    a, b = near[0] - exact, far[0] - exact
    of_near, of_both, of_far = (
        tf.reduce_sum(x * y, -1) for x, y in ((a, a), (a, b), (b, b))
    )

    def squares(log_gains):
        share = tf.sigmoid(far[1] + log_gains - near[1])[..., 0]
        found = (
            (1 - share) ** 2 * of_near
            + 2 * share * (1 - share) * of_both
            + share**2 * of_far
        )
        return tf.maximum(found, 0.0)  # rounding may leave less

    return squares


# -- Exact attention at some queries, beside which estimates stand.


class ExactRows(typing.NamedTuple):
    """Exact attention at some queries, "rows"; `seen`, `near`: to which keys."""

    query: tf.Tensor  # (B, rows, N, H)
    value: tf.Tensor  # (B, S, N, V), the values of each query head
    logits: tf.Tensor  # (B, N, rows, S)
    seen: tf.Tensor  # (B, N, rows, S), bool
    distance: np.ndarray  # (rows, S), int
    near: tf.Tensor  # (B, N, rows, S), bool, those seen in the exact window
    weights: tf.Tensor  # (B, N, rows, S), the softmax of the logits
    output: tf.Tensor  # (B, N, rows, V)
    counted: tf.Tensor  # (B, N, rows), bool, rows that are there and see a key


def exact_rows(query, key, value, inputs, num_rows, exact_window):
    """The `ExactRows` of one call of attention, at `num_rows` queries of each sequence.

    Query, key and value are float32 tensors in heads, `(B, T, N, H)`, `(B, S, K, H)`
    and `(B, S, K, V)`.
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
