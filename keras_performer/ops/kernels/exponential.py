"""The softmax kernel: positive random features with a stabilizer."""

import copy
import functools
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
from keras_performer.ops.kernels.parts import each, split
from keras_performer.ops.tensors import TensorLike

# The log-feature of a masked key. The stabilizer before the first key is EMPTY, and
# exp(MASKED - EMPTY) is 0.
MASKED = -2e30


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
            Then only the first half is multiplied, and features come in two parts.
            Defaults to `False`.
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
    def num_parts(self):
        return 2 if self.hyperbolic else 1

    @property
    def log_weights(self):
        """The importance weights, or `None` if there are none."""
        return self.parameters.get("log_weights")

    def in_one_part(self):
        """Returns this kernel in one part: more arithmetic in fewer operations."""
        if not self.hyperbolic:
            return self
        kernel, parameters = copy.copy(self), dict(self.parameters)
        kernel.hyperbolic = False
        if self.trainable:  # training changes only the first half
            half = tf.split(self.projection_matrix, 2, axis=-2)[0]
            parameters["projection_matrix"] = tf.concat([half, -half], -2)
        return kernel.with_parameters(parameters)

    def check_heads(self, num_key_value_heads):
        super().check_heads(num_key_value_heads)
        if self.log_weights is not None and self.log_weights.shape.rank == 2:
            check_axis_of_heads("log_weights", self.log_weights, num_key_value_heads)

    def _hold(self, parameters):
        self.parameters = parameters
        matrix = parameters["projection_matrix"]
        drawn = tf.split(matrix, self.num_parts, -2)[0]
        self._weights = drawn * scale(matrix)

    def bias(self, y, mask):
        """Returns -|y|^2 / 2, common to all log-features of a key, `(..., 1)`."""
        bias = -0.5 * scale(y) ** 2 * tf.reduce_sum(y * y, -1, keepdims=True)
        if mask is None:
            return bias
        return tf.where(mask, bias, tf.constant(MASKED, bias.dtype))

    def project_keys(self, y, mask):
        if mask is not None:  # a huge masked key would exceed MASKED
            y = tf.where(mask, y, tf.constant(0.0, y.dtype))
        bias = [self.bias(y, mask)] * self.num_parts
        b = self._plus_and_minus(bias, self.project_queries(y))
        if self.log_weights is None:
            return b
        return each(_add_to_rows, b, split(self.log_weights, self.num_parts))

    def pull_queries(self, x, da):
        if self.trainable:
            return super().pull_queries(x, da)
        return flat_matmul(da, self._weights), []

    def pull_keys(self, y, mask, db, v, dv):
        if self.trainable:
            return super().pull_keys(y, mask, db, v, dv)
        if mask is not None:  # a NaN in a masked key would enter the gradient
            y = tf.where(mask, y, tf.constant(0.0, y.dtype))
        # the gradient of the bias: the sum of features times their gradients
        dbias = tf.reduce_sum(v * dv, -1, keepdims=True)
        du = functools.reduce(tf.subtract, db)
        return flat_matmul(du, self._weights) - scale(y) ** 2 * y * dbias, []

    def key_features(self, b, r, mask):
        # a masked key has b = MASKED, and r >= EMPTY: its features are exactly 0
        return each(lambda b, r: tf.exp(b - r), b, r)

    def query_features(self, a, r):
        """Returns features whose largest is 1, and the logarithm of their divisor."""
        logs = self.query_logs(a, r)
        peaks = [tf.reduce_max(x, -1, keepdims=True) for x in logs]
        # a stabilizer for each row
        peak = tf.stop_gradient(functools.reduce(tf.maximum, peaks))
        return each(lambda x: tf.exp(x - peak), logs), peak

    def normalizer(self, peak, denominator):
        """Returns the logarithm of the sum of weights; `-EMPTY` if the sum is 0."""
        visible = denominator > 0
        one = tf.constant(1.0, denominator.dtype)
        log = tf.math.log(tf.where(visible, denominator, one))
        return tf.where(visible, peak + log, tf.constant(-EMPTY, peak.dtype))

    def log_normalizer(self, normalizer):
        empty = tf.constant(EMPTY, normalizer.dtype)
        return tf.where(normalizer < -EMPTY, normalizer, empty)

    def sign(self, normalizer):
        return tf.ones_like(normalizer)

    def normalizer_of(self, log_sums):
        empty = tf.constant(EMPTY, log_sums.dtype)
        return tf.where(log_sums > empty, log_sums, -empty)

    def log_left_out(self, query):
        # -|x|^2 / 2, and 1 / M of the mean over features
        squares = tf.reduce_sum(query * query, -1, keepdims=True)
        features = self.num_features(query.shape[-1])
        return -0.5 * scale(query) ** 2 * squares - math.log(features)

    def pull_left_out(self, query, dlog):
        return -(scale(query) ** 2) * query * dlog

    def normalized_query_features(self, a, r, normalizer):
        logs = self.query_logs(a, each(lambda r: r - normalizer, r))
        return each(tf.exp, logs)

    def query_logs(self, a, shift):
        """Returns log-features of queries plus a shift, parts."""
        return self._plus_and_minus(shift, a)

    def pull_query_logs(self, dlogs):
        """Returns the gradient of a."""
        return functools.reduce(tf.subtract, dlogs)

    def divided(self, d, normalizer):
        return d  # `normalized_query_features` divides

    def query_gradient(self, a, features, dfeatures):
        # the gradient of the product u; the parts are exp(u) and exp(-u)
        return self.pull_query_logs(each(tf.multiply, features, dfeatures))

    def key_gradient(self, b, features, dfeatures, mask):
        return each(tf.multiply, features, dfeatures)

    def running_max(self, r, b):
        return each(
            lambda r, b: tf.maximum(r, tf.reduce_max(b, 1, keepdims=True)), r, b
        )

    def rescale(self, old, new):
        return each(lambda old, new: tf.exp(old - new), old, new)

    def balance(self, r, sums):
        """Returns a stabilizer for which the normalizer of each feature is 1, and sums.

        This gives "two softmaxes": sums become convex averages of the values, and
        normalized query features become a softmax over features.
        """
        z = each(lambda s: s[:, -1:], sums)
        z = each(lambda z: tf.where(z > 0, z, tf.ones_like(z)), z)
        return each(lambda r, z: r + tf.math.log(z), r, z), each(tf.divide, sums, z)

    def _plus_and_minus(self, shift, u):
        """Returns the parts `shift + u` and, if hyperbolic, `shift - u`."""
        signs = (tf.add, tf.subtract)[: self.num_parts]
        return each(lambda sign, x: sign(x, u), signs, shift)


def _add_to_rows(b, log_weights):
    """Adds log-weights `(M,)`, or `(K, M)` for the K heads in X, to log-features."""
    if len(log_weights.shape) == 1:
        return b + log_weights
    by_head = split_heads(b, log_weights.shape[0]) + log_weights[:, tf.newaxis]
    return tf.reshape(by_head, tf.shape(b))
