"""The softmax kernel where float32 holds its features as they are, without a gauge.

For queries and keys of common size exp(u) is far from float32's limits: no maximum has
to be found and subtracted, and exp(-u) is 1 / exp(u), faster than an exponential.
Attention tries this kernel first. Where `keys_fit`, `sums_fit` or `queries_fit` says
no, it computes anew with the kernel that has a gauge.

What they ask for is enough. The two features of a key that share a product u multiply
to exp(2 bias) >= exp(-36), and neither exceeds its sum over keys, at most exp(16): all
are at least exp(-52), and the weights of a query that sees a key sum to at least
2 exp(-18). A query's feature below `TINY`, exp(-85), has a partner so large that they
sum to more than exp(85 - 52), more than is allowed. Gradients are divided by the sum of
weights before they meet a feature: that gives at most exp(52) times a gradient.
"""

import math

import tensorflow as tf

from keras_performer.ops.exponential import ExponentialKernel
from keras_performer.ops.kernels import EMPTY
from keras_performer.ops.parts import each

MIN_BIAS = -18.0
# Where the first tokens come closer than this, others are likely to be beyond.
MIN_FIRST_BIAS = -14.0
MAX_SUM = math.exp(16)
MAX_DENOMINATOR = math.exp(32)
# Least divisor. It also keeps XLA from making 1 / exp(u) a second exponential.
TINY = math.exp(-85)


def ungauged(kernel):
    """The kernel without its gauge; `None` where that has nothing to offer."""
    if not isinstance(kernel, ExponentialKernel) or not kernel.hyperbolic:
        return None
    if kernel.log_weights is not None:
        return None
    return UngaugedKernel(kernel.projection_matrix, hyperbolic=True)


class UngaugedKernel(ExponentialKernel):
    """A hyperbolic `ExponentialKernel` that leaves the running maximum as it is."""

    def project_keys(self, y, mask):
        """Log-features of the first part, and the bias of both."""
        bias = self.bias(y, mask)
        return self.project_queries(y) + bias, bias

    def key_features(self, b, r, mask):
        first, bias = b
        return _pair(tf.exp(first), tf.exp(2.0 * bias))

    def query_features(self, a, r):
        return _pair(tf.exp(a), 1.0), tf.zeros_like(a[..., :1])

    def normalized_query_features(self, a, r, normalizer):
        features, _ = self.query_features(a, r)
        return features

    def divided(self, d, normalizer):
        return d * tf.exp(-normalizer)

    def running_max(self, r, b):
        return r

    def rescale(self, old, new):
        return each(tf.ones_like, old)

    def balance(self, r, sums):
        return r, sums

    def first_fit(self, x):
        """Whether this kernel is worth a try, after the first queries or keys."""
        return tf.reduce_all(self.bias(x, None) >= MIN_FIRST_BIAS)

    def keys_fit(self, b):
        _, bias = b
        return tf.reduce_all(tf.logical_or(bias >= MIN_BIAS, bias < EMPTY))  # masked

    def sums_fit(self, sums):
        return tf.reduce_all(
            each(lambda x: tf.reduce_all(x[..., -1, :] <= MAX_SUM), sums)
        )

    def queries_fit(self, denominator):
        return tf.reduce_all(denominator <= MAX_DENOMINATOR)


def _pair(feature, product):
    """Two features with that product, from the first."""
    return feature, product / tf.maximum(feature, TINY)
