"""The estimates of linear attention beside exact attention, at some queries."""

import numpy as np
import tensorflow as tf

from keras_performer import ops

# Relative errors of what stands in the place of exact attention.
ESTIMATES = "mean", "window", "features", "both"


class HeadSums:
    """What adds up over batches, an entry for each head.

    The error of an estimate is the root of its squared differences from the exact
    output over the squares of that.
    """

    def __init__(self, num_heads):
        self.rows = 0
        self.squares = np.zeros(num_heads)
        self.differences = {}
        self.of_rows = {
            name: np.zeros(num_heads) for name in ("phi", "spread", "near_share")
        }

    def add_estimate(self, name, estimate, exact, counted):
        """Adds the differences of rows `(B, N, rows, V)` that count."""
        before = self.differences.get(name, 0.0)
        self.differences[name] = before + _squares(estimate - exact, counted)

    def error(self, name):
        """The relative error of each head, nan of what was not estimated or is 0."""
        differences = self.differences.get(name, np.full_like(self.squares, np.nan))
        return np.sqrt(differences / np.where(self.squares, self.squares, np.nan))

    def mean(self, name):
        return self.of_rows[name] / (self.rows or np.nan)


def add_errors(sums, twin, query, key, value, inputs, num_rows):
    """Adds what one call says to a `HeadSums`.

    Args:
        sums: a `HeadSums`.
        twin: a built `PerformerAttention`.
        query, key, value: float32 tensors in heads, `(B, T, N, H)`, `(B, S, K, H)` and
            `(B, S, K, V)`.
        inputs: the `Inputs` of the layer.
        num_rows: int, of how many queries of a sequence.
    """
    window, rows = twin.exact_window, _rows(query, num_rows)
    visible = inputs.visible
    logits, seen, near = _rows_of_logits(query, key, visible, rows, window)
    weights = tf.nn.softmax(tf.where(seen, logits, logits.dtype.min))
    counted = _counted(seen, inputs.query_mask, rows)

    def add(name, values):
        """Sums over counted rows of `(B, N, rows)`."""
        values = tf.where(counted, values, tf.zeros_like(values))
        sums.of_rows[name] += tf.reduce_sum(values, (0, 2)).numpy()

    exact = _over_values(weights, value)
    number = tf.cast(tf.math.count_nonzero(seen, -1), tf.float32)
    one_of = tf.cast(seen, tf.float32) / tf.maximum(number, 1)[..., tf.newaxis]
    estimates = {"mean": _over_values(one_of, value)}
    estimates |= {
        name: _at(output, rows)
        for name, output in _outputs(twin, query, key, value, visible).items()
    }
    for name, estimate in estimates.items():
        sums.add_estimate(name, estimate, exact, counted)
    sums.squares += _squares(exact, counted)
    sums.rows += int(tf.reduce_sum(tf.cast(counted[:, 0], tf.int32)))

    mean = tf.reduce_sum(one_of * logits, -1)
    add("phi", tf.reduce_sum(one_of * _squared_sums(query, key, logits, rows), -1))
    squared = tf.reduce_sum(one_of * (logits - mean[..., tf.newaxis]) ** 2, -1)
    add("spread", tf.sqrt(squared))
    add("near_share", tf.reduce_sum(tf.where(near, weights, 0.0), -1))


def add_error(sums, name, output, query, key, value, inputs, num_rows):
    """Adds the error of one estimate to a `HeadSums`.

    Args:
        output: tensor `(B, T, N, V)`, the estimate.
        name: str, what it is called.
        sums, query, key, value, inputs, num_rows: as in `add_errors`.
    """
    rows = _rows(query, num_rows)
    logits, seen, _ = _rows_of_logits(query, key, inputs.visible, rows, None)
    weights = tf.nn.softmax(tf.where(seen, logits, logits.dtype.min))
    counted = _counted(seen, inputs.query_mask, rows)
    exact = _over_values(weights, value)
    sums.add_estimate(name, _at(output, rows), exact, counted)
    sums.squares += _squares(exact, counted)


def _rows(query, num_rows):
    length = query.shape[1]
    return np.unique(np.linspace(0, length - 1, num_rows).astype(int))


def _at(output, rows):
    """Rows of `(B, T, N, V)` as `(B, N, rows, V)`."""
    return tf.transpose(tf.gather(output, rows, axis=1), (0, 2, 1, 3))


def _rows_of_logits(query, key, visible, rows, window):
    """Logits `(B, N, rows, S)`, who is seen, and who of them is near."""
    group = query.shape[2] // key.shape[2]
    keys = tf.repeat(key, group, axis=2)
    picked = tf.gather(query, rows, axis=1) * query.shape[3] ** -0.5
    logits = tf.einsum("brnh,bsnh->bnrs", picked, keys)
    seen = visible.rows(rows, key.shape[1])[:, tf.newaxis]
    seen = tf.broadcast_to(seen, tf.shape(logits))
    distance = rows[:, np.newaxis] - np.arange(key.shape[1])
    return logits, seen, seen & (np.abs(distance) < (window or 0))


def _counted(seen, query_mask, rows):
    """Which rows count, bool `(B, N, rows)`: those that are there and see a key."""
    counted = tf.reduce_any(seen, -1)
    if query_mask is not None:
        counted &= tf.gather(query_mask, rows, axis=1)[:, tf.newaxis]
    return counted


def _over_values(weights, value):
    values = tf.repeat(value, weights.shape[1] // value.shape[2], axis=2)
    return tf.einsum("bnrs,bsnv->bnrv", weights, values)


def _outputs(twin, query, key, value, visible):
    """Outputs `(B, T, N, V)` of what is linear in the length."""
    inputs, kernel = (query, key, value), twin.kernel()
    if visible.causal:
        features, _ = ops.causal_attention(*inputs, kernel, visible)
    else:
        features = ops.bidirectional_attention(*inputs, kernel, visible)
    outputs = {"features": features}
    if twin.exact_window is not None:
        window = twin.exact_window
        outputs["window"], _ = ops.local_attention(*inputs, window, visible)
        gain = twin.log_gain_of_heads()
        outputs["both"], _ = ops.windowed_attention(
            *inputs, kernel, window, gain, visible
        )
    return outputs


def _squares(x, counted):
    x = tf.reduce_sum(x**2, -1)
    return tf.reduce_sum(tf.where(counted, x, tf.zeros_like(x)), (0, 2)).numpy()


def _squared_sums(query, key, logits, rows):
    """|x + y|^2 of rows and keys with x = q / H^(1/4), y = k / H^(1/4)."""
    scale = query.shape[3] ** -0.5

    def squares(x):
        return scale * tf.transpose(tf.reduce_sum(x**2, -1), (0, 2, 1))

    of_queries = squares(tf.gather(query, rows, axis=1))[..., tf.newaxis]
    of_keys = squares(tf.repeat(key, query.shape[2] // key.shape[2], axis=2))
    return of_queries + of_keys[:, :, tf.newaxis] + 2 * logits
