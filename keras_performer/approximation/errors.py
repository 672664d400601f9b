"""The estimates of linear attention beside exact attention, at some queries."""

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.approximation.estimates import mean_by_logits, mean_by_weights
from keras_performer.approximation.exact_rows import exact_rows, over_values
from keras_performer.ops.pair_weights import pair_weights

# Relative errors of what stands in the place of exact attention; "doubled" is the one
# before it, or features alone without a window, by twice as many random features.
ESTIMATES = "mean", "window", "features", "both", "doubled"


class HeadSums:
    """What adds up over calls, an entry for each head.

    The error of an estimate is the root of its squared differences from the exact
    output over the squares of that.
    """

    def __init__(self, num_heads):
        self.squares = np.zeros(num_heads)
        self._num_rows = 0
        self._differences: dict = {}
        self._numbers: dict = {}
        self._weights = np.zeros((num_heads, 0))

    def add_exact(self, exact):
        """Adds the output of the `ExactRows` of a call, once for all estimates."""
        self._num_rows += np.count_nonzero(exact.counted[:, 0])
        self.squares += _over_rows(tf.reduce_sum(exact.output**2, -1), exact)

    def add_estimate(self, name, output, exact):
        """Adds the differences of an output `(B, N, rows, V)` from that of `exact`."""
        squares = tf.reduce_sum((output - exact.output) ** 2, -1)
        self.add_squares(name, squares, exact)

    def add_squares(self, name, squares, exact):
        """Adds the squared differences of each row, `(B, N, rows)`."""
        added = _over_rows(squares, exact)
        self._differences[name] = self._differences.get(name, 0.0) + added

    def add_numbers(self, name, numbers, exact):
        """Adds a number of each row, `(B, N, rows)`, of which the mean is asked for."""
        added = _over_rows(numbers, exact)
        self._numbers[name] = self._numbers.get(name, 0.0) + added

    def add_distances(self, exact):
        """Adds the exact weights, by how many places off they are."""
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
        """The relative error of each head, nan of what was not estimated or is 0."""
        differences = self._differences.get(name, np.full_like(self.squares, np.nan))
        return np.sqrt(differences / np.where(self.squares, self.squares, np.nan))

    def mean(self, name):
        return self._numbers[name] / (self._num_rows or np.nan)


def add_errors(sums, twin, doubled, query, key, value, inputs, num_rows):
    """Adds what one call says to a `HeadSums`.

    Args:
        sums: a `HeadSums`.
        twin: a built `PerformerAttention`.
        doubled: the same with twice as many random features, or `None`.
        query, key, value, inputs, num_rows: as in `exact_rows`.
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
        sums.add_estimate(name, output, exact)

    logits = exact.logits
    mean = tf.reduce_sum(one_of * logits, -1, keepdims=True)
    variance = tf.reduce_sum(one_of * (logits - mean) ** 2, -1)
    phi = tf.reduce_sum(one_of * _squared_sums(key, exact), -1)
    near_share = tf.reduce_sum(tf.where(exact.near, exact.weights, 0.0), -1)
    sums.add_numbers("phi", phi, exact)
    sums.add_numbers("spread", tf.sqrt(variance), exact)
    sums.add_numbers("near_share", near_share, exact)


def _outputs(twin, key, exact):
    """Outputs `(B, N, rows, V)` of what is linear in the length."""
    weights = *pair_weights(exact.query, key, twin.kernel()), exact.value
    features, _ = mean_by_weights(*weights, exact.seen)
    if twin.exact_window is None:
        return {"features": features}
    window, near = mean_by_logits(exact.logits, exact.value, exact.near)
    others, far = mean_by_weights(*weights, exact.seen & ~exact.near)
    far += twin.log_gain_of_heads()[:, tf.newaxis, tf.newaxis]
    both, _ = ops.join_parts((window, near), (others, far))
    return {"window": window, "features": features, "both": both}


def _over_rows(numbers, exact):
    """Sums of `(B, N, rows)` over the rows that count, a number of each head."""
    counted = tf.where(exact.counted, numbers, tf.zeros_like(numbers))
    return tf.reduce_sum(counted, (0, 2)).numpy()


def _squared_sums(key, exact):
    """|x + y|^2 of rows and keys with x = q / H^(1/4), y = k / H^(1/4)."""
    query = exact.query
    scale = query.shape[3] ** -0.5

    def squares(x):
        return scale * tf.transpose(tf.reduce_sum(x**2, -1), (0, 2, 1))

    of_keys = squares(tf.repeat(key, query.shape[2] // key.shape[2], axis=2))
    of_pairs = squares(query)[..., tf.newaxis] + of_keys[:, :, tf.newaxis]
    return of_pairs + 2 * exact.logits
