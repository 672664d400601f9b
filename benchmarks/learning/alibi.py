"""ALiBi, a bias of logits that falls with the distance, for the tables of positions.

Head n of N subtracts 2^(-8 n / N) (i - j) from the logit of query i and key j. The term
with i cancels, as it is equal for all keys. The term with j is one more element of
queries and keys. Features add it to the bias of a key. One number holds a position
accurately enough for the lengths in the tables.

Reference:
    Press et al. 2022, Train short, test long, arXiv 2108.12409, section 3.
"""

import keras
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from keras_performer.ops import ExponentialKernel, Kernel


class WithPlaces:
    """Mixin that adds positions to the keys of an attention layer."""

    def attend(self, query, key, value, visible, state=None, training=None):
        return super().attend(*with_places(query, key), value, visible)


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiExact(WithPlaces, ExactAttention):
    """Causal exact attention with ALiBi."""


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiLocal(WithPlaces, LocalAttention):
    """Causal local attention with ALiBi."""


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiPerformer(WithPlaces, PerformerAttention):
    """Causal attention with "softmax" features, an optional window, and ALiBi."""

    def feature_kernel(self):
        kernel = super().feature_kernel()
        return AlibiKernel(kernel.projection_matrix, kernel.hyperbolic)


class AlibiKernel(ExponentialKernel):
    """Features without positions; the position adds to the bias of a key."""

    def project_queries(self, x):
        return super().project_queries(_without_places(x))

    def bias(self, y, mask):
        return super().bias(_without_places(y), mask) + y[..., -1:]

    def log_left_out(self, query):
        return super().log_left_out(_without_places(query))

    # gradients by a tape, which are right for any features
    pull_queries = Kernel.pull_queries
    pull_keys = Kernel.pull_keys


def with_places(query, key):
    """Returns queries and keys `(B, T, N, H + 1)` whose logits include the bias."""
    length, num_heads, size = key.shape[1:]
    slopes = 2.0 ** (-8.0 * tf.range(1.0, num_heads + 1) / num_heads)
    places = tf.range(1.0 - length, 1.0)[:, tf.newaxis, tf.newaxis]
    # attention divides logits by the square root of the new size, H + 1
    ones = tf.ones_like(query[..., :1]) * (size + 1) ** 0.5
    places = tf.ones_like(key[..., :1]) * places * slopes[:, tf.newaxis]
    longer = (1 + 1 / size) ** 0.25
    return tf.concat([query * longer, ones], -1), tf.concat([key * longer, places], -1)


def _without_places(x):
    return x[..., :-1] * (1 - 1 / x.shape[-1]) ** 0.25
