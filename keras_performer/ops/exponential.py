"""The softmax kernel: positive random features, held in a gauge."""

import functools

import tensorflow as tf

from keras_performer.ops.kernels import EMPTY, MASKED, constant, flat_matmul, scale
from keras_performer.ops.parts import each, split


class ExponentialKernel:
    """Positive random features of the softmax kernel, in the logarithmic domain.

    With x = q / H^(1/4) and y = k / H^(1/4), exp(q . k / sqrt(H)) is estimated by
    the mean over features of exp(l_q + l_k), where

        l_q = W x - |x|^2 / 2        l_k = W y - |y|^2 / 2 + log_weights

    |x|^2 / 2 is common to all features of a query, cancels, and is never computed.

    Args:
        projection_matrix: tensor `(M, H)`, the matrix W.
        hyperbolic: bool, the second half of W's rows is minus the first half; only
            the first half is then multiplied, and features come in two parts.
        log_weights: optional tensor `(M,)`, the importance weights
            log N(w; 0, I) - log p(w) of rows drawn from another density p.

    Reference:
        arXiv 2009.14794, Lemma 1 and section 2.3.
    """

    # Keys of one block may exceed the reference by exp(60) before products of
    # features leave float32's range; past that the sequential form is used.
    max_rise = 60.0

    def __init__(self, projection_matrix, hyperbolic=False, log_weights=None):
        self.projection_matrix = constant(projection_matrix)
        self.hyperbolic = hyperbolic
        self.log_weights = None
        if log_weights is not None:
            dtype = self.projection_matrix.dtype
            self.log_weights = tf.cast(constant(log_weights), dtype)
        num_rows = self.projection_matrix.shape[0]
        if hyperbolic and num_rows % 2:
            raise ValueError(
                "A hyperbolic projection_matrix must have an even number of rows: the "
                "second half is minus the first. Received: projection_matrix of shape "
                f"{tuple(self.projection_matrix.shape)}"
            )
        self.num_parts = 2 if hyperbolic else 1
        drawn = num_rows // self.num_parts
        self._weights = self.projection_matrix[:drawn] * scale(self.projection_matrix)

    def astype(self, dtype):
        """The same kernel computing in `dtype`."""
        if dtype == self.projection_matrix.dtype:
            return self
        matrix = tf.cast(self.projection_matrix, dtype)
        return ExponentialKernel(matrix, self.hyperbolic, self.log_weights)

    def in_one_part(self):
        """The same kernel with a product for every feature, in fewer operations."""
        if not self.hyperbolic:
            return self
        return ExponentialKernel(self.projection_matrix, log_weights=self.log_weights)

    def project_queries(self, x):
        return flat_matmul(x, self._weights, transpose=True)

    def bias(self, y, mask):
        """-|y|^2 / 2, which all log-features of a key have in common, `(..., 1)`."""
        bias = -0.5 * scale(y) ** 2 * tf.reduce_sum(y * y, -1, keepdims=True)
        if mask is None:
            return bias
        return tf.where(mask, bias, tf.constant(MASKED, bias.dtype))

    def project_keys(self, y, mask):
        bias = [self.bias(y, mask)] * self.num_parts
        b = self._plus_and_minus(bias, self.project_queries(y))
        if self.log_weights is None:
            return b
        return each(tf.add, b, split(self.log_weights, self.num_parts))

    def pull_queries(self, du):
        """Gradient with respect to a block of queries."""
        return flat_matmul(du, self._weights)

    def pull_keys(self, du, y, v, dv):
        """Gradient with respect to a block of keys, with its values and theirs."""
        # of the bias, which scales the features of a key and its values alike
        dbias = tf.reduce_sum(v * dv, -1, keepdims=True)
        return self.pull_queries(du) - scale(y) ** 2 * y * dbias

    def key_features(self, b, r, mask):
        # a masked key has b = MASKED, and r >= EMPTY: its features are exactly 0
        return each(lambda b, r: tf.exp(b - r), b, r)

    def query_features(self, a, r):
        """Features whose largest is 1, and the logarithm of their common divisor."""
        logs = self._plus_and_minus(r, a)
        peaks = [tf.reduce_max(x, -1, keepdims=True) for x in logs]
        # a gauge too, of each row
        peak = tf.stop_gradient(functools.reduce(tf.maximum, peaks))
        return each(lambda x: tf.exp(x - peak), logs), peak

    def normalizer(self, peak, denominator):
        """What a backward pass needs: here the logarithm of the sum of weights."""
        visible = denominator > 0
        log = tf.math.log(tf.where(visible, denominator, tf.ones_like(denominator)))
        return tf.where(visible, peak + log, tf.constant(-EMPTY, peak.dtype))

    def normalized_query_features(self, a, r, normalizer):
        shift = each(lambda r: r - normalizer, r)
        return each(tf.exp, self._plus_and_minus(shift, a))

    def divided(self, d, normalizer):
        """Gradients of weighted sums, divided by the sum of weights.

        Here the normalized features are.
        """
        return d

    def query_gradient(self, a, features, dfeatures):
        """Gradient with respect to the product of queries and matrix."""
        return self._pull_signs(features, dfeatures)

    def key_gradient(self, b, features, dfeatures, mask):
        """Gradient with respect to the product of keys and matrix."""
        return self._pull_signs(features, dfeatures)

    def running_max(self, r, b):
        return each(
            lambda r, b: tf.maximum(r, tf.reduce_max(b, 1, keepdims=True)), r, b
        )

    def reference(self, r, b, mask):
        """A gauge for one block in which no row that sees a key underflows.

        The maximum of the past and of the block's first key, so that it depends on no
        later key than any row that it serves; while nothing has been seen, of the
        first key that is not masked.
        """
        if mask is None:
            return each(lambda r, b: tf.maximum(r, b[:, :1]), r, b)
        first = tf.argmax(tf.cast(mask[..., 0], tf.int32), -1, output_type=tf.int32)
        empty = r[0][:, 0, 0] <= EMPTY
        first = tf.where(empty, first, tf.zeros_like(first))[:, tf.newaxis]
        return each(
            lambda r, b: tf.maximum(r, tf.gather(b, first, axis=1, batch_dims=1)), r, b
        )

    def rescale(self, old, new):
        return each(lambda old, new: tf.exp(old - new), old, new)

    def balance(self, r, sums):
        """The gauge in which every normalizer is 1 ("two softmaxes").

        The query features then are a softmax over features, and the sums are convex
        averages of the values.
        """
        z = each(lambda s: s[:, -1:], sums)
        z = each(lambda z: tf.where(z > 0, z, tf.ones_like(z)), z)
        return each(lambda r, z: r + tf.math.log(z), r, z), each(tf.divide, sums, z)

    def _plus_and_minus(self, shift, u):
        """The parts `shift + u` and `shift - u`; the first alone if not hyperbolic."""
        signs = (tf.add, tf.subtract)[: self.num_parts]
        return each(lambda sign, x: sign(x, u), signs, shift)

    def _pull_signs(self, features, dfeatures):
        """Gradient of the product u that the parts share."""
        return functools.reduce(tf.subtract, each(tf.multiply, features, dfeatures))
