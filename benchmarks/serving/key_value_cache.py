"""Exact attention whose state is a cache: what linear attention is served beside."""

import keras
import tensorflow as tf

import keras_performer
from keras_performer.layers import arguments


@keras.saving.register_keras_serializable(package="benchmarks")
class ExactWithCache(keras_performer.layers.AttentionLayer):
    """Exact causal attention with a cache of keys and values of fixed length.

    The cache has heads before places, so that both products read it as it lies, and
    each row of a batch its own number of tokens so far. A step attends to all places
    with a mask: make it no longer than sequences get.

    Args:
        num_heads, key_dim: as in `AttentionLayer`.
        cache_length: int L, the most tokens of a sequence.
        **kwargs: as in `AttentionLayer`.
    """

    supports_state = True

    def __init__(self, num_heads, key_dim, *, cache_length, **kwargs):
        super().__init__(num_heads, key_dim, **{"causal": True, **kwargs})
        self.cache_length = arguments.positive_int("cache_length", cache_length)

    def empty_state(self, batch_size):
        rows = batch_size, self.num_key_value_heads, self.cache_length
        return {
            "key": tf.zeros((*rows, self.key_dim), self.compute_dtype),
            "value": tf.zeros((*rows, self.value_dim), self.compute_dtype),
            "length": tf.zeros((batch_size,), tf.int32),
        }

    def attend(self, query, key, value, visible, state=None, training=None):
        if visible.key_mask is not None:
            raise ValueError(
                "ExactWithCache caches every token and takes no masks: leave padding "
                "out. Received: a mask of keys"
            )
        if state is None:  # the whole sequence is here, and nothing else
            attended = keras_performer.ops.exact_attention(query, key, value, visible)
            return attended, self._filled(key, value)
        start = state["length"][:, tf.newaxis]
        places = start + tf.range(tf.shape(key)[1])  # (B, T)
        keys = _put(state["key"], places, key)
        values = _put(state["value"], places, value)
        # query heads that share a key head are further queries of it
        batch, length, heads, key_dim = tf.unstack(tf.shape(query))
        group = self.num_heads // self.num_key_value_heads
        rows = batch, length, self.num_key_value_heads, group, key_dim
        query = tf.transpose(tf.reshape(query, rows), (0, 2, 3, 1, 4))
        logits = tf.matmul(query, keys[:, :, tf.newaxis], transpose_b=True)
        logits *= tf.cast(key_dim, logits.dtype) ** -0.5
        seen = tf.range(self.cache_length) <= places[:, :, tf.newaxis]
        logits = tf.where(seen[:, tf.newaxis, tf.newaxis], logits, logits.dtype.min)
        attended = tf.matmul(tf.nn.softmax(logits), values[:, :, tf.newaxis])
        attended = tf.transpose(attended, (0, 3, 1, 2, 4))
        attended = tf.reshape(attended, (batch, length, heads, self.value_dim))
        later = {"key": keys, "value": values, "length": state["length"] + length}
        return attended, later

    def _filled(self, key, value):
        batch, length = tf.unstack(tf.shape(key)[:2])
        left = ((0, 0), (0, 0), (0, self.cache_length - length), (0, 0))
        key, value = (tf.pad(tf.transpose(x, (0, 2, 1, 3)), left) for x in (key, value))
        # shapes that TensorFlow cannot tell, and signatures want
        shape = None, self.num_key_value_heads, self.cache_length
        return {
            "key": tf.ensure_shape(key, (*shape, self.key_dim)),
            "value": tf.ensure_shape(value, (*shape, self.value_dim)),
            "length": tf.fill((batch,), length),
        }

    def get_config(self):
        return {**super().get_config(), "cache_length": self.cache_length}


def _put(cache, places, new):
    """The cache `(B, K, L, H)` with new `(B, T, K, H)` at places `(B, T)`."""
    batch, length, heads, _ = tf.unstack(tf.shape(new))
    shape = batch, length, heads
    indices = tf.stack(
        [
            tf.broadcast_to(tf.range(batch)[:, tf.newaxis, tf.newaxis], shape),
            tf.broadcast_to(tf.range(heads), shape),
            tf.broadcast_to(places[:, :, tf.newaxis], shape),
        ],
        axis=-1,
    )
    return tf.tensor_scatter_nd_update(cache, indices, new)
