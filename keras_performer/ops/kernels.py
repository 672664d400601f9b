"""What one block of queries or keys turns into, and how gradients come back.

A kernel here is a weight function `phi(q) . phi(k)`. The attention loops know only
the interface that the two classes share, where (`parts.py` says what parts are)

    a   projected queries `(X, rows, M / num_parts)`, one tensor
    b   log-features of keys, parts; for an `ActivationKernel` what it activates
    r   running maximum, parts `(X, 1, M / num_parts)`; it scales every feature by
        exp(-r), a gauge: what is computed does not depend on it, so that it carries no
        gradient

and X counts batch entries times key-value heads.
"""

import functools

import tensorflow as tf

from keras_performer.ops.parts import each, over_rows, split

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
        self.projection_matrix = _constant(projection_matrix)
        self.hyperbolic = hyperbolic
        self.log_weights = None
        if log_weights is not None:
            dtype = self.projection_matrix.dtype
            self.log_weights = tf.cast(_constant(log_weights), dtype)
        num_rows = self.projection_matrix.shape[0]
        if hyperbolic and num_rows % 2:
            raise ValueError(
                "A hyperbolic projection_matrix must have an even number of rows: the "
                "second half is minus the first. Received: projection_matrix of shape "
                f"{tuple(self.projection_matrix.shape)}"
            )
        self.num_parts = 2 if hyperbolic else 1
        drawn = num_rows // self.num_parts
        self._weights = self.projection_matrix[:drawn] * _scale(self.projection_matrix)

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
        return _matmul(x, self._weights, transpose=True)

    def project_keys(self, y, mask):
        bias = -0.5 * _scale(y) ** 2 * tf.reduce_sum(y * y, -1, keepdims=True)
        if mask is not None:
            bias = tf.where(mask, bias, tf.constant(MASKED, bias.dtype))
        b = self._plus_and_minus([bias] * self.num_parts, self.project_queries(y))
        if self.log_weights is None:
            return b
        return each(tf.add, b, split(self.log_weights, self.num_parts))

    def pull_queries(self, du):
        """Gradient with respect to a block of queries."""
        return _matmul(du, self._weights)

    def pull_keys(self, du, y, v, dv):
        """Gradient with respect to a block of keys, with its values and theirs."""
        # of the bias, which scales the features of a key and its values alike
        dbias = tf.reduce_sum(v * dv, -1, keepdims=True)
        return self.pull_queries(du) - _scale(y) ** 2 * y * dbias

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
        """What `normalized_query_features` needs: here log of the sum of weights."""
        visible = denominator > 0
        log = tf.math.log(tf.where(visible, denominator, tf.ones_like(denominator)))
        return tf.where(visible, peak + log, tf.constant(-EMPTY, peak.dtype))

    def normalized_query_features(self, a, r, normalizer):
        shift = each(lambda r: r - normalizer, r)
        return each(tf.exp, self._plus_and_minus(shift, a))

    def query_gradient(self, a, features, dfeatures, normalizer):
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


class ActivationKernel:
    """Features `activation(W x) + epsilon` of the paper's generalized attention.

    A different model from softmax attention, not an approximation of it.

    Args:
        projection_matrix: tensor `(M, H)`, or `None` for `activation(x) + epsilon`.
        activation: function of a tensor, applied to every element.
        epsilon: float added to each feature. 1e-3 as in the paper's code.

    Reference:
        arXiv 2009.14794, section 2.2 and appendix B.3 (generalized attention).
    """

    max_rise = None  # features are bounded by the inputs: no range to watch
    num_parts = 1

    def __init__(self, projection_matrix, activation, epsilon=1e-3):
        self.activation = activation
        self.epsilon = epsilon
        self.projection_matrix = None
        if projection_matrix is not None:
            self.projection_matrix = _constant(projection_matrix)
            self._weights = self.projection_matrix * _scale(self.projection_matrix)

    def astype(self, dtype):
        """The same kernel computing in `dtype`."""
        w = self.projection_matrix
        if w is None or dtype == w.dtype:
            return self
        w = tf.cast(w, dtype)
        return ActivationKernel(w, self.activation, self.epsilon)

    def in_one_part(self):
        return self

    def project_queries(self, x):
        if self.projection_matrix is None:
            return x * _scale(x)
        return _matmul(x, self._weights, transpose=True)

    def project_keys(self, y, mask):
        return (self.project_queries(y),)

    def pull_queries(self, du):
        if self.projection_matrix is None:
            return du * _scale(du)
        return _matmul(du, self._weights)

    def pull_keys(self, du, y, v, dv):
        return self.pull_queries(du)

    def key_features(self, b, r, mask):
        features = self.activation(b[0]) + self.epsilon
        if mask is not None:
            features = tf.where(mask, features, tf.zeros_like(features))
        return (features,)

    def query_features(self, a, r):
        return (self.activation(a) + self.epsilon,), tf.zeros_like(a[..., :1])

    def normalizer(self, peak, denominator):
        """What `normalized_query_features` needs: here 1 / the sum of weights."""
        return tf.math.divide_no_nan(tf.ones_like(denominator), denominator)

    def normalized_query_features(self, a, r, normalizer):
        return ((self.activation(a) + self.epsilon) * normalizer,)

    def query_gradient(self, a, features, dfeatures, normalizer):
        return self._derivative(a, dfeatures[0] * normalizer)

    def key_gradient(self, b, features, dfeatures, mask):
        dfeatures = dfeatures[0]
        if mask is not None:
            dfeatures = tf.where(mask, dfeatures, tf.zeros_like(dfeatures))
        return self._derivative(b[0], dfeatures)

    def running_max(self, r, b):
        return r

    def reference(self, r, b, mask):
        return r

    def rescale(self, old, new):
        return each(tf.ones_like, old)

    def balance(self, r, sums):
        return r, sums

    def _derivative(self, a, dfeatures):
        with tf.GradientTape() as tape:
            tape.watch(a)
            features = self.activation(a)
        return tape.gradient(
            features,
            a,
            output_gradients=dfeatures,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )


def _scale(x):
    """H^(-1/4): queries and keys each take half of the softmax's 1 / sqrt(H)."""
    return x.shape[-1] ** -0.25


def _constant(x):
    return tf.stop_gradient(tf.convert_to_tensor(x))


def _matmul(x, w, transpose=False):
    """`x @ w` for x `(X, rows, D)` as one flat product, faster than X small ones."""
    rows = tf.shape(x)[1] if x.shape[1] is None else x.shape[1]
    dim = w.shape[0 if transpose else 1]
    flat = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), w, transpose_b=transpose)
    return tf.reshape(flat, (-1, rows, dim))
