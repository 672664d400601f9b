"""Queries and keys of one length, which the model learns."""

import math

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.ops.shapes import compute_dtype

# Vectors shorter than the root of this keep a part of their length.
SMALLEST_SQUARE = 1e-6


def checked(layer, value):
    """The argument `qk_norm` of an attention layer."""
    value = arguments.boolean("qk_norm", value)
    if value and not {"query", "key"} <= set(layer.projections):
        raise ValueError(
            f"{type(layer).__name__} has no queries and keys to normalize: use "
            "qk_norm=False. Received: qk_norm=True"
        )
    return value


def made_for(layer):
    """The built `QueryKeyNorm` of an attention layer; `None` without `qk_norm`."""
    if not layer.qk_norm:
        return None
    sizes = layer.num_key_value_heads, layer.key_dim
    norm = QueryKeyNorm(*sizes, layer.initial_logit_scale)
    norm.build()
    return norm


def normalized(layer, heads):
    """Queries or keys `(B, T, N, H)`, normalized if the layer has `qk_norm`."""
    return layer.query_key_norm.normalized(heads) if layer.qk_norm else heads


class QueryKeyNorm(keras.layers.Layer):
    """Makes the logit of a query and a key `scale * cos(query, key)`.

    Args:
        num_heads: int K, key-value heads; query heads that share one share its scale.
        head_dim: int H.
        initial_scale: float, the scale at first.
    """

    def __init__(self, num_heads, head_dim, initial_scale):
        super().__init__(name="query_key_norm", dtype="float32")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.initial_scale = initial_scale

    def build(self, input_shape=None):
        self.log_scale = self.add_weight(
            name="log_scale",
            shape=(self.num_heads,),
            initializer=keras.initializers.Constant(math.log(self.initial_scale)),
            autocast=False,
        )

    def normalized(self, x):
        """Queries or keys `(..., N, H)` with half of the logit's scale each."""
        # the logit is q . k / sqrt(H)
        length = self.head_dim**0.25 * tf.exp(tf.convert_to_tensor(self.log_scale) / 2)
        length = tf.repeat(length, x.shape[-2] // self.num_heads)[:, tf.newaxis]
        wide = tf.cast(x, compute_dtype(x))
        unit = tf.math.l2_normalize(wide, -1, epsilon=SMALLEST_SQUARE)
        return tf.cast(unit * tf.cast(length, wide.dtype), x.dtype)

    def load_own_variables(self, store):
        # a file of attention without it has none: it stays
        if store.keys():
            super().load_own_variables(store)
