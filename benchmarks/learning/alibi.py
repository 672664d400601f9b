"""ALiBi, logits that fall with the distance, for the tables of positions.

Of head n of N a logit is less by 2^(-8 n / N) (i - j). What is in i is the same for all
keys of a query and cancels; what is left is one more number of queries and keys, which
features read apart. (Good for the lengths of the tables: places are not split.)

Reference:
    Press et al. 2022, Train short, test long, arXiv 2108.12409, section 3.
"""

import keras
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from keras_performer.ops import ExponentialKernel, Kernel


class WithPlaces:
    """Attention to keys that hold their places, before the class of an attention."""

    def attend(self, query, key, value, visible, state=None, training=None):
        return super().attend(*with_places(query, key), value, visible)


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiExact(WithPlaces, ExactAttention):
    """Exact attention with ALiBi, causal."""


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiLocal(WithPlaces, LocalAttention):
    """Local attention with ALiBi, causal."""


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiPerformer(WithPlaces, PerformerAttention):
    """Features of "softmax", with a window or without, and ALiBi, causal."""

    def feature_kernel(self):
        kernel = super().feature_kernel()
        return AlibiKernel(kernel.projection_matrix, kernel.hyperbolic)


class AlibiKernel(ExponentialKernel):
    """Features of what `with_places` was given, and the places in what keys add."""

    def project_queries(self, x):
        return super().project_queries(_without_places(x))

    def bias(self, y, mask):
        return super().bias(_without_places(y), mask) + y[..., -1:]

    def log_left_out(self, query):
        return super().log_left_out(_without_places(query))

    # of any features, by a tape
    pull_queries = Kernel.pull_queries
    pull_keys = Kernel.pull_keys


def with_places(query, key):
    """Queries and keys `(B, T, N, H + 1)` whose logits have the bias."""
    length, num_heads, size = key.shape[1:]
    slopes = 2.0 ** (-8.0 * tf.range(1.0, num_heads + 1) / num_heads)
    places = tf.range(1.0 - length, 1.0)[:, tf.newaxis, tf.newaxis]
    # logits are divided by the square root of the size, which is one more now
    ones = tf.ones_like(query[..., :1]) * (size + 1) ** 0.5
    places = tf.ones_like(key[..., :1]) * places * slopes[:, tf.newaxis]
    longer = (1 + 1 / size) ** 0.25
    return tf.concat([query * longer, ones], -1), tf.concat([key * longer, places], -1)


def _without_places(x):
    return x[..., :-1] * (1 - 1 / x.shape[-1]) ** 0.25
