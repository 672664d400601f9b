"""The random projection matrix of an attention layer, and how it is redrawn."""

import random

import keras
import tensorflow as tf

_MAX_SEED = 2**31 - 1


class RandomProjection(keras.layers.Layer):
    """Holds a matrix of random features and draws the next one.

    Args:
        feature_map: a `FeatureMap`.
        num_features: int M.
        head_dim: int H.
        seed: int or `None`.
    """

    def __init__(self, feature_map, num_features, head_dim, seed=None):
        super().__init__(name="random_projection", dtype="float32", trainable=False)
        self.feature_map = feature_map
        self.num_features = num_features
        self.head_dim = head_dim
        self.seed = seed

    def build(self, input_shape=None):
        seed = self.seed
        if seed is None:
            # what keras.utils.set_random_seed seeds, as for Keras' own layers
            seed = random.randrange(_MAX_SEED)
        seed %= _MAX_SEED
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
        self.matrix = self.add_weight(
            name="projection_matrix",
            shape=(self.num_features, self.head_dim),
            dtype="float32",
            initializer=lambda shape, dtype: self._draw(seed, 0),
            trainable=False,
            autocast=False,
        )

    def redraw(self, num_redraws):
        """Moves on in the sequence of matrices, which the seed alone determines."""
        count = tf.convert_to_tensor(self.redraw_count) + num_redraws
        matrix = self._draw(tf.convert_to_tensor(self.first_seed), count)
        self.redraw_count.assign(count)
        self.matrix.assign(matrix)

    def _draw(self, seed, redraw_count):
        with tf.device("CPU:0"):  # so that all kinds of machines draw the same
            seed = tf.stack([tf.cast(seed, tf.int32), tf.cast(redraw_count, tf.int32)])
            return self.feature_map.draw(self.num_features, self.head_dim, seed)
