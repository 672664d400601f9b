"""The softmax kernel: positive random features with a stabilizer."""

import math

import tensorflow as tf

from keras_performer.ops.kernels.base import (
    EMPTY,
    Kernel,
    check_axis_of_heads,
    flat_matmul,
    scale,
    split_heads,
)
from keras_performer.ops.shapes import TensorLike, masked

# The log-feature of a masked key. The stabilizer before the first key is EMPTY, and
# exp(MASKED - EMPTY) is 0.
MASKED = -2e30
# The largest head that is multiplied by the whole of a hyperbolic matrix. For smaller
# heads a product with twice the rows takes less time than joining its halves.
WHOLE_UP_TO = 32


class ExponentialKernel(Kernel):
    """Positive random features of the softmax kernel, in the logarithmic domain.

    With x = q / H^(1/4) and y = k / H^(1/4), exp(q . k / sqrt(H)) is estimated by
    the mean over features of exp(l_q + l_k), where

        l_q = W x - |x|^2 / 2        l_k = W y - |y|^2 / 2 + log_weights

    |x|^2 / 2 is the same for all features of a query, so it cancels, and
    `query_features` leaves it out.

    Args:
        projection_matrix: tensor `(M, H)`, the matrix W, or `(K, M, H)` with one for
            each key-value head.
        hyperbolic: bool, whether the second half of W's rows is minus the first half.
            Large heads are then multiplied by the first half only. Defaults to
            `False`.
        log_weights: optional tensor `(M,)` or `(K, M)`, the importance weights
            log N(w; 0, I) - log p(w) of rows sampled from another density p. Defaults
            to `None`.
        trainable: bool, whether gradients flow to the matrix and the log-weights. If
            `hyperbolic`, only the first half of the matrix is read and trained.
            Defaults to `False`.

    Reference:
        arXiv 2009.14794, Lemma 1 and section 2.3.
    """

    # Key features up to exp(60) keep products of features in the range of float32.
    # Chunks with larger features are rare chunks, computed by log-sum-exp.
    max_rise = 60.0

    def __init__(
        self,
        projection_matrix: TensorLike,
        hyperbolic: bool = False,
        log_weights: TensorLike | None = None,
        trainable: bool = False,
    ) -> None:
        self.hyperbolic = hyperbolic
        matrix = tf.convert_to_tensor(projection_matrix)
        parameters = {"projection_matrix": matrix}
        if log_weights is not None:
            log_weights = tf.convert_to_tensor(log_weights)
            parameters["log_weights"] = tf.cast(log_weights, matrix.dtype)
        if hyperbolic and matrix.shape[-2] % 2:
            raise ValueError(
                "A hyperbolic projection_matrix must have an even number of rows: the "
                "second half is minus the first. Received: projection_matrix of shape "
                f"{tuple(matrix.shape)}"
            )
        super().__init__(parameters, trainable)

    @property
    def log_weights(self):
        """The importance weights, or `None` if there are none."""
        return self.parameters.get("log_weights")

    def check_heads(self, num_key_value_heads):
        super().check_heads(num_key_value_heads)
        if self.log_weights is not None and self.log_weights.shape.rank == 2:
            check_axis_of_heads("log_weights", self.log_weights, num_key_value_heads)

    def _hold(self, parameters):
        self.parameters = parameters
        matrix = parameters["projection_matrix"]
        self._joins_halves = self.hyperbolic and matrix.shape[-1] > WHOLE_UP_TO
        if self._joins_halves:
            matrix = tf.split(matrix, 2, -2)[0]
        elif self.hyperbolic and self.trainable:  # training changes the first half only
            half = tf.split(matrix, 2, -2)[0]
            matrix = tf.concat([half, -half], -2)
        self._weights = matrix * scale(matrix)

    def bias(self, y, mask):
        """Returns -|y|^2 / 2, common to all log-features of a key, `(..., 1)`."""
        bias = -0.5 * scale(y) ** 2 * tf.reduce_sum(y * y, -1, keepdims=True)
        if mask is None:
            return bias
        return tf.where(mask, bias, MASKED)

    def project_queries(self, x):
        u = super().project_queries(x)
        return tf.concat([u, -u], -1) if self._joins_halves else u

    def project_keys(self, y, mask):
        y = masked(y, mask)  # a huge masked key would exceed MASKED
        b = self.project_queries(y) + self.bias(y, mask)
        return b if self.log_weights is None else _add_to_rows(b, self.log_weights)

    def pull_queries(self, x, da):
        if self.trainable:
            return super().pull_queries(x, da)
        return self._pull_product(da), []

    def pull_keys(self, y, mask, db, v, dv):
        if self.trainable:
            return super().pull_keys(y, mask, db, v, dv)
        y = masked(y, mask)  # a NaN in a masked key would enter the gradient
        # the gradient of the bias: the sum of features times their gradients
        dbias = tf.reduce_sum(v * dv, -1, keepdims=True)
        return self._pull_product(db) - scale(y) ** 2 * y * dbias, []

    def _pull_product(self, du):
        if self._joins_halves:
            du = tf.subtract(*tf.split(du, 2, -1))
        return flat_matmul(du, self._weights)

    def key_features(self, b, r, mask):
        # a masked key has b = MASKED, and r >= EMPTY: its features are exactly 0
        return tf.exp(b - r)

    def query_features(self, a, r):
        """Returns features whose largest is 1, and the logarithm of their divisor."""
        logs = a + r
        # a stabilizer for each row
        peak = tf.stop_gradient(tf.reduce_max(logs, -1, keepdims=True))
        return tf.exp(logs - peak), peak

    def normalizer(self, peak, denominator):
        """Returns the logarithm of the sum of weights; `-EMPTY` if the sum is 0."""
        visible = denominator > 0
        log = tf.math.log(tf.where(visible, denominator, 1.0))
        return tf.where(visible, peak + log, -EMPTY)

    def log_normalizer(self, normalizer):
        return tf.where(normalizer < -EMPTY, normalizer, EMPTY)

    def sign(self, normalizer):
        return tf.ones_like(normalizer)

    def normalizer_of(self, log_sums):
        return tf.where(log_sums > EMPTY, log_sums, -EMPTY)

    def log_left_out(self, query):
        # -|x|^2 / 2, and 1 / M of the mean over features
        squares = tf.reduce_sum(query * query, -1, keepdims=True)
        features = self.num_features(query.shape[-1])
        return -0.5 * scale(query) ** 2 * squares - math.log(features)

    def pull_left_out(self, query, dlog):
        return -(scale(query) ** 2) * query * dlog

    def normalized_query_features(self, a, r, normalizer):
        return tf.exp(a + (r - normalizer))

    def divided(self, d, normalizer):
        return d  # `normalized_query_features` divides

    def query_gradient(self, a, features, dfeatures):
        return features * dfeatures

    def key_gradient(self, b, features, dfeatures, mask):
        return features * dfeatures

    def running_max(self, r, b):
        return tf.maximum(r, tf.reduce_max(b, 1, keepdims=True))

    def rescale(self, old, new):
        return tf.exp(old - new)


def _add_to_rows(b, log_weights):
    """Adds log-weights `(M,)`, or `(K, M)` for the K heads in X, to log-features."""
    if len(log_weights.shape) == 1:
        return b + log_weights
    by_head = split_heads(b, log_weights.shape[0]) + log_weights[:, tf.newaxis]
    return tf.reshape(by_head, tf.shape(b))
