"""Computes errors of estimated attention, compared with exact attention."""

import typing

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.checks import check_window
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY

# Estimates of exact attention whose errors are measured. "doubled" is "both", or
# "features" without a window, with twice as many random features.
ESTIMATES = "mean", "window", "features", "both", "doubled"


def relative_error(squares, of_exact):
    """Returns sqrt(squares / of_exact), sums of squares of differences and outputs.

    It is nan if exact outputs are 0, and inf if the estimate overflows.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(np.divide(squares, of_exact))
    return np.where(of_exact == 0, np.nan, np.where(np.isnan(errors), np.inf, errors))


class HeadSums:
    """Sums over calls, with an entry for each head.

    The error of an estimate is |estimate - exact output| / |exact output|, with norms
    over all rows.
    """

    def __init__(self, num_heads):
        self.squares = np.zeros(num_heads)
        self._num_rows = 0
        self._sums: dict = {}
        self._weights = np.zeros((num_heads, 0))

    def add_exact(self, exact):
        """Adds the exact output; called once for all estimates of a call."""
        self._num_rows += np.count_nonzero(exact.counted[:, 0])
        self.squares += _over_rows(tf.reduce_sum(exact.output**2, -1), exact)

    def add(self, name, numbers, exact):
        """Adds numbers `(B, N, rows)`, one for each row, to a named sum."""
        self._sums[name] = self._sums.get(name, 0.0) + _over_rows(numbers, exact)

    def add_output(self, name, output, exact):
        """Adds squared differences of an estimate `(B, N, rows, V)` to a named sum."""
        self.add(name, tf.reduce_sum((output - exact.output) ** 2, -1), exact)

    def add_distances(self, exact):
        """Adds the exact weights to sums for each distance between query and key."""
        counted = tf.where(exact.counted[..., tf.newaxis], exact.weights, 0.0)
        of_heads = tf.reduce_sum(counted, 0).numpy()
        distance = exact.distance.ravel()
        length = max(distance.max() + 1, self._weights.shape[1])
        longer = [(0, 0), (0, length - self._weights.shape[1])]
        self._weights = np.pad(self._weights, longer) + [
            np.bincount(distance, weights.ravel(), length) for weights in of_heads
        ]

    def window_with(self, share):
        """Returns each head's smallest window that has a share of all exact weights."""
        within = np.cumsum(self._weights, 1)
        return 1 + np.argmax(within >= share * within[:, -1:], 1)

    def error(self, name):
        """Returns the `relative_error` of each head; nan if nothing was added."""
        if name not in self._sums:
            return np.full_like(self.squares, np.nan)
        return relative_error(self._sums[name], self.squares)

    def mean(self, name):
        return self._sums[name] / (self._num_rows or np.nan)


def _over_rows(numbers, exact):
    counted = tf.where(exact.counted, numbers, tf.zeros_like(numbers))
    return tf.reduce_sum(counted, (0, 2)).numpy()


def add_errors(sums, twin, doubled, query, key, value, inputs, num_rows):
    """Adds errors and statistics of a `PerformerAttention` in one call to a `HeadSums`.

    `doubled` is the same layer with twice as many random features, or `None`.
    """
    exact = exact_rows(query, key, value, inputs, num_rows, twin.exact_window)
    sums.add_exact(exact)
    sums.add_distances(exact)
    number = tf.cast(tf.math.count_nonzero(exact.seen, -1), tf.float32)
    uniform = tf.cast(exact.seen, tf.float32) / tf.maximum(number, 1)[..., tf.newaxis]
    estimates = {"mean": over_values(uniform, exact.value)}
    estimates |= _outputs(twin, key, exact)
    if doubled is not None:
        name = "features" if twin.exact_window is None else "both"
        estimates["doubled"] = _outputs(doubled, key, exact)[name]
    for name, output in estimates.items():
        sums.add_output(name, output, exact)

    mean = tf.reduce_sum(uniform * exact.logits, -1, keepdims=True)
    variance = tf.reduce_sum(uniform * (exact.logits - mean) ** 2, -1)
    near_share = tf.reduce_sum(tf.where(exact.near, exact.weights, 0.0), -1)
    phi = tf.reduce_sum(uniform * _squared_sums(key, exact), -1)
    sums.add("phi", phi, exact)
    sums.add("spread", tf.sqrt(variance), exact)
    sums.add("near_share", near_share, exact)


def _outputs(twin, key, exact):
    """Returns outputs `(B, N, rows, V)` of the estimates that take linear time."""
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
    """Computes |x + y|^2 of rows and keys with x = q / H^(1/4), y = k / H^(1/4)."""
    query = exact.query
    scale = query.shape[3] ** -0.5

    def squares(x):
        return scale * tf.transpose(tf.reduce_sum(x**2, -1), (0, 2, 1))

    of_keys = squares(tf.repeat(key, query.shape[2] // key.shape[2], axis=2))
    of_pairs = squares(query)[..., tf.newaxis] + of_keys[:, :, tf.newaxis]
    return of_pairs + 2 * exact.logits


# -- Attention of some queries to some keys, with explicit weights of all pairs.
#
# For a few queries, this is as cheap as the loops that are linear in the length.
# Near and far parts are computed once, and serve all gains.


def pair_weights(query, key, kernel):
    """Computes the weight `phi(q) . phi(k)` of every pair, in quadratic memory.

    Query and key are `(B, T, N, H)` and `(B, S, K, H)`. Returns the weights divided by
    exp(log_scale), `(B, N, T, S)`, and log_scale, `(B, N, T, 1)`; float32, or float64
    for float64 inputs.
    """
    heads = Heads(query, key, key)
    kernel = kernel.astype(heads.dtype)
    x = heads.query_rows(query[:, tf.newaxis], 0)
    y = heads.rows_of_keys(key)
    b = kernel.project_keys(y, None)
    shape = tf.shape(y)[0], 1, kernel.num_features(key.shape[3])
    nothing = tf.fill(shape, tf.constant(EMPTY, heads.dtype))
    r = kernel.running_max(nothing, b)
    features, log_scale = kernel.query_features(kernel.project_queries(x), r)
    weights = tf.matmul(features, kernel.key_features(b, r, None), transpose_b=True)
    found = weights, log_scale + kernel.log_left_out(x)
    weights, log_scale = (
        tf.transpose(heads.query_block(z), (0, 2, 1, 3)) for z in found
    )
    return weights, log_scale


def mean_by_logits(logits, value, seen):
    """Computes exact attention to the keys that are `seen`, from their logits.

    `logits` and the bools `seen` have the shape `(B, N, rows, S)`. The results are
    `(output, log_sums)` for `ops.join_parts`, `(B, N, rows, V)` and `(B, N, rows, 1)`.
    """
    logits = tf.where(seen, logits, EMPTY)
    log_scale = tf.reduce_max(logits, -1, keepdims=True)
    return mean_by_weights(tf.exp(logits - log_scale), log_scale, value, seen)


def mean_by_weights(weights, log_scale, value, seen):
    """Computes attention to the keys that are `seen`, from the weights of all keys.

    Weights and log-scales are as `pair_weights` returns them, results as in
    `mean_by_logits`.
    """
    weights = tf.where(seen, weights, tf.zeros_like(weights))
    sums = tf.reduce_sum(weights, -1, keepdims=True)
    some = sums != 0
    sums = tf.where(some, sums, tf.ones_like(sums))
    log_sums = tf.where(some, log_scale + tf.math.log(tf.abs(sums)), EMPTY)
    return over_values(weights, value) / sums, log_sums


# -- Exact attention at some queries, to compare estimates with.


class ExactRows(typing.NamedTuple):
    """Exact attention at some queries, called rows."""

    query: tf.Tensor  # (B, rows, N, H)
    value: tf.Tensor  # (B, S, N, V), the values of each query head
    logits: tf.Tensor  # (B, N, rows, S)
    seen: tf.Tensor  # (B, N, rows, S), bool, visible keys
    distance: np.ndarray  # (rows, S), int
    near: tf.Tensor  # (B, N, rows, S), bool, visible keys in the exact window
    weights: tf.Tensor  # (B, N, rows, S), the softmax of the logits
    output: tf.Tensor  # (B, N, rows, V)
    counted: tf.Tensor  # (B, N, rows), bool, unmasked rows that see a key


def exact_rows(query, key, value, inputs, num_rows, exact_window):
    """Computes `ExactRows` of one call, at `num_rows` queries of each sequence.

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
    near, output = seen & (distance < (exact_window or 0)), over_values(weights, value)
    of_keys = logits, seen, distance, near, weights
    return ExactRows(query, value, *of_keys, output, counted)


def logits_of(query, key):
    """Computes q . k / sqrt(H), `(B, N, rows, S)`."""
    keys = tf.repeat(key, query.shape[2] // key.shape[2], axis=2)
    return tf.einsum("brnh,bsnh->bnrs", query * query.shape[3] ** -0.5, keys)


def over_values(weights, value):
    """Computes weighted sums `(B, N, rows, V)` of `ExactRows.value`."""
    return tf.einsum("bnrs,bsnv->bnrv", weights, value)
