"""Learned embeddings of positions on a grid."""

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.grid import coordinates
from keras_performer.layers.token_embedding import with_dense_gradient


class AxialPositionEmbedding(keras.layers.Layer):
    """Adds up one learned vector for each coordinate of a position.

    Position p of a sequence that runs through a grid in row-major order, such as an
    image of shape (rows, columns, channels), has one coordinate for each axis. With
    one axis this is the usual table of positions.

    Args:
        grid_shape: tuple of ints, the lengths of the axes.
        output_dim: int, size of the embedding.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451 (axial position embeddings).
    """

    def __init__(self, grid_shape, output_dim, **kwargs):
        super().__init__(**kwargs)
        self.grid_shape = arguments.int_tuple("grid_shape", grid_shape)
        self.output_dim = arguments.positive_int("output_dim", output_dim)

    def build(self, positions_shape):
        self.tables = [
            self.add_weight(
                name=f"axis_{axis}",
                shape=(length, self.output_dim),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
            for axis, length in enumerate(self.grid_shape)
        ]

    def call(self, positions):
        embedding, found = 0.0, coordinates(positions, self.grid_shape)
        for length, table, coordinate in zip(self.grid_shape, self.tables, found):
            # coordinates repeat: their rows are added up, as `TokenEmbedding` says
            table = with_dense_gradient(tf.cast(table, self.compute_dtype))
            embedding += tf.gather(table, coordinate % length)
        return embedding

    def compute_output_shape(self, positions_shape):
        return (*positions_shape, self.output_dim)
