"""What one block of queries or keys turns into, and how gradients come back.

A kernel here is a weight function `phi(q) . phi(k)`. The attention loops know only
the interface of `ExponentialKernel`, which `UngaugedKernel` and `ActivationKernel`
share, where (`parts.py` says what parts are)

    a   projected queries `(X, rows, M / num_parts)`, one tensor
    b   log-features of keys, parts; for the other two kernels what they make of a
        block of keys for `key_features`
    r   running maximum, parts `(X, 1, M / num_parts)`; it scales every feature by
        exp(-r), a gauge: what is computed does not depend on it, so that it carries no
        gradient. The other two kernels have none and leave it as it is

and X counts batch entries times key-value heads.
"""

import tensorflow as tf

from keras_performer.ops.parts import each, over_rows

# A feature that no key has reached yet, and the log-feature of a masked key: far
# below any real log-feature, finite in float32, and exp(MASKED - EMPTY) is 0.
EMPTY = -1e30
MASKED = -2e30


def initial_state(
    batch_size, num_key_value_heads, num_features, value_dim, dtype="float32"
):
    """The state of causal attention before the first token.

    Args:
        batch_size: int or scalar tensor B.
        num_key_value_heads: int K.
        num_features: int M.
        value_dim: int V.
        dtype: "float32", or "float64" for float64 inputs.

    Returns:
        `(running_max, sums)`, tensors of shapes `(B, K, M)` and `(B, K, V + 1, M)`.
    """
    shape = (batch_size, num_key_value_heads)
    return (
        tf.fill((*shape, num_features), tf.constant(EMPTY, dtype)),
        tf.zeros((*shape, value_dim + 1, num_features), dtype),
    )


def absorb(kernel, b, v, r, sums, mask):
    """The gauge, and the sums, after a block of further keys.

    Args:
        kernel: an `ExponentialKernel` or `ActivationKernel`.
        b: log-features of the keys, parts `(X, tokens, M / num_parts)`.
        v: their values with a column of ones, `(X, tokens, V + 1)`.
        r: running maximum before them, parts `(X, 1, M / num_parts)`.
        sums: sums before them, parts `(X, V + 1, M / num_parts)`.
        mask: bool tensor `(X, tokens, 1)`, true for visible keys, or `None`.
    """
    r_new = each(tf.stop_gradient, kernel.running_max(r, b))
    added = over_rows(v, kernel.key_features(b, r_new, mask))
    sums = each(tf.multiply, sums, kernel.rescale(r, r_new))
    return r_new, each(tf.add, sums, added)


def plain_call(function, kernel, *arguments):
    """Calls a pass of attention, where nobody compiles it."""
    return function(kernel, *arguments)


def num_features(kernel, head_dim):
    """int M, how many features a kernel gives heads of size `head_dim`."""
    w = kernel.projection_matrix
    return head_dim if w is None else w.shape[0]


class WithoutGauge:
    """What kernels do whose features nothing scales: `r` stays as it is."""

    max_rise = None  # no range to watch

    def normalizer(self, peak, denominator):
        """What `divided` needs: 1 / the sum of weights."""
        return tf.math.divide_no_nan(tf.ones_like(denominator), denominator)

    def normalized_query_features(self, a, r, normalizer):
        features, _ = self.query_features(a, r)
        return features

    def divided(self, d, normalizer):
        return d * normalizer

    def running_max(self, r, b):
        return r

    def reference(self, r, b, mask):
        return r

    def rescale(self, old, new):
        return each(tf.ones_like, old)

    def balance(self, r, sums):
        return r, sums


def scale(x):
    """H^(-1/4): queries and keys each take half of the softmax's 1 / sqrt(H)."""
    return x.shape[-1] ** -0.25


def constant(x):
    return tf.stop_gradient(tf.convert_to_tensor(x))


def flat_matmul(x, w, transpose=False):
    """`x @ w` for x `(X, rows, D)` as one flat product, faster than X small ones."""
    rows = tf.shape(x)[1] if x.shape[1] is None else x.shape[1]
    dim = w.shape[0 if transpose else 1]
    flat = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), w, transpose_b=transpose)
    return tf.reshape(flat, (-1, rows, dim))
