"""What one block of queries or keys turns into, and how gradients come back.

A kernel here is a weight function `phi(q) . phi(k)`. The attention loops know only
the interface that the two classes share; "a" below are the projected inputs of a
block, `(X, rows, M)`, where X counts batch entries times key-value heads.

The running maximum `r`, `(X, 1, M)`, scales every feature by exp(-r). It is a gauge:
what is computed does not depend on it, so it carries no gradient.
"""

import tensorflow as tf

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
            the first half is then multiplied.
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
        drawn = num_rows // 2 if hyperbolic else num_rows
        self._weights = self.projection_matrix[:drawn] * _scale(self.projection_matrix)

    def astype(self, dtype):
        """The same kernel computing in `dtype`."""
        if dtype == self.projection_matrix.dtype:
            return self
        return ExponentialKernel(
            tf.cast(self.projection_matrix, dtype),
            self.hyperbolic,
            None if self.log_weights is None else tf.cast(self.log_weights, dtype),
        )

    def project_queries(self, x):
        a = _matmul(x, self._weights, transpose=True)
        return tf.concat([a, -a], -1) if self.hyperbolic else a

    def project_keys(self, y, mask):
        bias = 0.5 * _scale(y) ** 2 * tf.reduce_sum(y * y, -1, keepdims=True)
        if mask is not None:
            bias = tf.where(mask, bias, tf.constant(-MASKED, bias.dtype))
        a = _matmul(y, self._weights, transpose=True)
        if self.hyperbolic:
            a = tf.concat([a - bias, -a - bias], -1)
        else:
            a = a - bias
        return a if self.log_weights is None else a + self.log_weights

    def pull_queries(self, da):
        """Gradient with respect to a block of queries."""
        if self.hyperbolic:
            drawn = self._weights.shape[0]
            da = da[..., :drawn] - da[..., drawn:]
        return _matmul(da, self._weights)

    def pull_keys(self, da, y, v, dv):
        """Gradient with respect to a block of keys, with its values and theirs."""
        # the sum of da: a key's weight scales its features and its values alike
        total = tf.reduce_sum(v * dv, -1, keepdims=True)
        return self.pull_queries(da) - _scale(y) ** 2 * y * total

    def key_features(self, a, r, mask):
        # a masked key has a = MASKED, and r >= EMPTY: its features are exactly 0
        return tf.exp(a - r)

    def query_features(self, a, r):
        """Features whose largest is 1, and the logarithm of their common divisor."""
        a = a + r
        peak = tf.reduce_max(a, -1, keepdims=True)
        return tf.exp(a - peak), peak

    def normalizer(self, peak, denominator):
        """What `normalized_query_features` needs: here log of the sum of weights."""
        visible = denominator > 0
        log = tf.math.log(tf.where(visible, denominator, tf.ones_like(denominator)))
        return tf.where(visible, peak + log, tf.constant(-EMPTY, peak.dtype))

    def normalized_query_features(self, a, r, normalizer):
        return tf.exp(a + (r - normalizer))

    def query_gradient(self, a, features, dfeatures, normalizer):
        return features * dfeatures

    def key_gradient(self, a, features, dfeatures, mask):
        return features * dfeatures

    def running_max(self, r, a):
        return tf.maximum(r, tf.reduce_max(a, 1, keepdims=True))

    def reference(self, r, a, mask):
        """A gauge for one block in which no row that sees a key underflows.

        The maximum of the past and of the block's first key, so that it depends on no
        later key than any row that it serves; while nothing has been seen, of the
        first key that is not masked.
        """
        if mask is None:
            return tf.maximum(r, a[:, :1])
        first = tf.argmax(tf.cast(mask[..., 0], tf.int32), -1, output_type=tf.int32)
        empty = r[:, 0, 0] <= EMPTY
        first = tf.where(empty, first, tf.zeros_like(first))
        return tf.maximum(r, tf.gather(a, first[:, tf.newaxis], axis=1, batch_dims=1))

    def rescale(self, old, new):
        return tf.exp(old - new)

    def balance(self, r, sums):
        """The gauge in which every normalizer is 1 ("two softmaxes").

        The query features then are a softmax over features, and the sums are convex
        averages of the values.
        """
        z = sums[:, -1:]
        z = tf.where(z > 0, z, tf.ones_like(z))
        return r + tf.math.log(z), sums / z


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

    def project_queries(self, x):
        if self.projection_matrix is None:
            return x * _scale(x)
        return _matmul(x, self._weights, transpose=True)

    def project_keys(self, y, mask):
        return self.project_queries(y)

    def pull_queries(self, da):
        if self.projection_matrix is None:
            return da * _scale(da)
        return _matmul(da, self._weights)

    def pull_keys(self, da, y, v, dv):
        return self.pull_queries(da)

    def key_features(self, a, r, mask):
        features = self.activation(a) + self.epsilon
        if mask is None:
            return features
        return tf.where(mask, features, tf.zeros_like(features))

    def query_features(self, a, r):
        return self.activation(a) + self.epsilon, tf.zeros_like(a[..., :1])

    def normalizer(self, peak, denominator):
        """What `normalized_query_features` needs: here 1 / the sum of weights."""
        return tf.math.divide_no_nan(tf.ones_like(denominator), denominator)

    def normalized_query_features(self, a, r, normalizer):
        return (self.activation(a) + self.epsilon) * normalizer

    def query_gradient(self, a, features, dfeatures, normalizer):
        return self._derivative(a, dfeatures * normalizer)

    def key_gradient(self, a, features, dfeatures, mask):
        if mask is not None:
            dfeatures = tf.where(mask, dfeatures, tf.zeros_like(dfeatures))
        return self._derivative(a, dfeatures)

    def running_max(self, r, a):
        return r

    def reference(self, r, a, mask):
        return r

    def rescale(self, old, new):
        return tf.ones_like(old)

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
