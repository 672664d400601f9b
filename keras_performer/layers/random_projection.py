"""The random features of an attention layer, and how they are redrawn."""

import keras
import tensorflow as tf

from keras_performer.layers.drawn_weights import add_drawn, drawn, first_seed


class RandomProjection(keras.layers.Layer):
    """Holds the parameters of random features and draws the next ones.

    Args:
        feature_map: a `FeatureMap`.
        num_features: int M.
        num_heads: int K, key-value heads.
        head_dim: int H.
        seed: int or `None`.
    """

    def __init__(self, feature_map, num_features, num_heads, head_dim, seed=None):
        super().__init__(name="random_projection", dtype="float32")
        self.feature_map = feature_map
        self.num_features = num_features
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.seed = seed

    def build(self, input_shape=None):
        seed = first_seed(self.seed)
        counter = dict(shape=(), dtype="int32", trainable=False)
        # a weight, so that every worker and a resumed run draw the same sequence
        self.first_seed = self.add_weight(
            name="projection_seed",
            initializer=keras.initializers.Constant(seed),
            **counter,
        )
        self.redraw_count = self.add_weight(
            name="redraw_count", initializer="zeros", **counter
        )
        values = drawn(lambda: self._draw(seed, 0))
        if isinstance(values, dict):
            self.parameters = {
                name: self._add_parameter(name, values[name]) for name in sorted(values)
            }
        else:
            self.parameters = self._add_parameter("projection_matrix", values)

    def kernel(self):
        """The kernel of the features as they are drawn now."""
        kernel = self.feature_map.kernel(
            tf.nest.map_structure(tf.convert_to_tensor, self._nest())
        )
        return kernel.with_gradients() if self.feature_map.trainable else kernel

    def redraw(self, num_redraws):
        """Moves on in the sequence of features, which the seed alone determines."""
        count = tf.convert_to_tensor(self.redraw_count) + num_redraws
        values = self._draw(tf.convert_to_tensor(self.first_seed), count)
        self.redraw_count.assign(count)
        tf.nest.map_structure(lambda w, x: w.assign(x), self._nest(), values)

    def load_own_variables(self, store):
        # what estimates softmax always has features: such a file is one of exact
        # attention, as `keras.layers.MultiHeadAttention` is; the features stay
        if store.keys() or not self.feature_map.estimates_softmax:
            super().load_own_variables(store)

    def _nest(self):
        # not Keras' own dict, which tf.nest does not take for one
        is_one = not isinstance(self.parameters, dict)
        return self.parameters if is_one else dict(self.parameters)

    def _add_parameter(self, name, value):
        return add_drawn(self, name, value, self.feature_map.trainable)

    def _draw(self, seed, redraw_count):
        with tf.device("CPU:0"):  # so that all kinds of machines draw the same
            seed = tf.stack([tf.cast(seed, tf.int32), tf.cast(redraw_count, tf.int32)])
            return self.feature_map.draw_for_heads(
                self.num_heads, self.num_features, self.head_dim, seed
            )
