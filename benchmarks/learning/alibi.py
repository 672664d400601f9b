"""Exact attention with a bias that falls with the distance, for positions' tables."""

import keras
import tensorflow as tf

from keras_performer.layers import ExactAttention


@keras.saving.register_keras_serializable(package="benchmarks")
class AlibiAttention(ExactAttention):
    """Causal attention with ALiBi: logits of head n of N less 2^(-8 n / N) (i - j).

    The part in i is the same for all keys of a query. What is left becomes one more
    number of queries and keys.

    Reference:
        Press et al. 2022, Train short, test long, arXiv 2108.12409, section 3.
    """

    def attend(self, query, key, value, visible, state=None, training=None):
        length, size = key.shape[1], key.shape[3]
        heads = tf.range(1.0, self.num_heads + 1)
        slopes = 2.0 ** (-8.0 * heads / self.num_heads)
        # logits are divided by the square root of the size, which is one more here
        slopes *= (size + 1.0) ** 0.5
        query *= ((size + 1.0) / size) ** 0.5
        slopes = tf.broadcast_to(slopes[:, tf.newaxis], (*query.shape[:3], 1))
        places = tf.range(1.0 - length, 1.0)[:, tf.newaxis, tf.newaxis]
        places = tf.broadcast_to(places, (*key.shape[:3], 1))
        query, key = tf.concat([query, slopes], -1), tf.concat([key, places], -1)
        return super().attend(query, key, value, visible)
