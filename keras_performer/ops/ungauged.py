"""The softmax kernel where float32 holds its features as they are, without a gauge.

For queries and keys of common size exp(u) is far from float32's limits: no maximum has
to be found and subtracted, and exp(-u) is 1 / exp(u), faster than an exponential.
Attention tries this kernel first. Where `keys_fit`, `sums_fit` or `queries_fit` says
no, it computes anew with the kernel that has a gauge.

What they ask for is enough. The two features of a key that share a product u multiply
to exp(2 bias) >= exp(-36), and neither exceeds its sum over keys, at most exp(16): all
are at least exp(-52). Where a query has a feature beyond exp(64) or exp(-64), which are
not computed, one of a pair is exp(64); times its sum over keys, at least exp(-18), that
is more than the weights of a query may sum to, exp(45). Gradients are divided by that
sum before they meet a feature; a feature divided by it is at most exp(18). Values may
be as large as exp(40).

What is computed in vain is finite. Its second derivatives are, too, up to |u| = 44 of
keys: there 1 / exp(u)^2 leaves float32.
"""

import math

import tensorflow as tf

from keras_performer.ops.exponential import ExponentialKernel
from keras_performer.ops.kernels import EMPTY, WithoutGauge
from keras_performer.ops.parts import each

MIN_BIAS = -18.0
# Where the first tokens come closer than this, others are likely to be beyond.
MIN_FIRST_BIAS = -14.0
MIN_SUM, MAX_SUM = math.exp(-18), math.exp(16)
MAX_DENOMINATOR = math.exp(45)
MAX_EXPONENT = 64.0


def ungauged(kernel):
    """The kernel without its gauge; `None` where that has nothing to offer."""
    # a subclass may have features of its own
    if type(kernel) is not ExponentialKernel or not kernel.hyperbolic:
        return None
    if kernel.log_weights is not None:
        return None
    return UngaugedKernel(kernel.projection_matrix, hyperbolic=True)


class UngaugedKernel(WithoutGauge, ExponentialKernel):
    """A hyperbolic `ExponentialKernel` whose features nothing scales."""

    def project_keys(self, y, mask):
        """Log-features of the first part, and the bias of both."""
        bias = self.bias(y, mask)
        return self.project_queries(y) + bias, bias

    def key_features(self, b, r, mask):
        first, bias = b
        return _pair(first, tf.exp(2.0 * bias))

    def query_features(self, a, r):
        return _pair(a, 1.0), tf.zeros_like(a[..., :1])

    def first_fit(self, x, mask=None):
        """Whether this kernel is worth a try, after the first queries or keys."""
        return _all_above(MIN_FIRST_BIAS, self.bias(x, mask))

    def keys_fit(self, b):
        """Whether floats hold the features of these keys, if they hold their sums."""
        return _all_above(MIN_BIAS, b[1])

    def sums_fit(self, sums):
        """Whether the sums, parts `(X, V + 1, M / 2)`, hold all features of keys."""
        total = tf.stack(each(lambda x: x[:, -1], sums))
        in_range = tf.logical_and(total >= MIN_SUM, total <= MAX_SUM)
        return tf.reduce_all(tf.logical_or(in_range, total == 0))  # no visible key

    def queries_fit(self, denominator):
        """Whether floats hold features of queries whose weights sum to this."""
        return tf.reduce_all(denominator <= MAX_DENOMINATOR)


def _all_above(least, bias):
    return tf.reduce_all(tf.logical_or(bias >= least, bias < EMPTY))  # or masked


def _pair(first, product):
    """Two features with that product, from the logarithm of the first."""
    feature = tf.exp(tf.minimum(first, MAX_EXPONENT))
    # the maximum also keeps XLA from making 1 / exp(u) a second exponential
    return feature, product / tf.maximum(feature, math.exp(-MAX_EXPONENT))
