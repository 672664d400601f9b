"""Embeddings of tokens and of positions in a grid, and their base class."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.arguments import LayerInput
from keras_performer.layers.call_inputs import coordinates
from keras_performer.layers.dense import KeepsLora
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.shapes import compute_dtype


class EmbeddingLayer(keras.layers.Layer):
    """Base class of embeddings with a state, or with an output for the head.

    Any layer from inputs `(B, T)` to `(B, T, hidden_dim)` can be the embedding of a
    `PerformerLM`. Subclass this one if the embedding needs earlier inputs, or must pass
    something to the head. A subclass defines

        call(inputs, state)

    which returns `(x, extra, state)`: the embedded tokens; nested tensors `(B, T, ...)`
    that bypass the blocks, so that the head is called with `(x, extra)`; and the state
    after these inputs. If there is a state, define `empty_state(batch_size)`: the state
    before the first token, nested tensors with the batch first. The class attribute
    `extra_dtypes` has the dtypes of `extra`, `()` without `extra`.

    Args:
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Example:

    An embedding of pairs of neighbouring tokens that also passes the tokens on:

    >>> class Pairs(EmbeddingLayer):
    ...     extra_dtypes = "int32"
    ...     def build(self, input_shape):
    ...         self.table = self.add_weight(shape=(7, 7, 4), name="table")
    ...     def empty_state(self, batch_size):
    ...         return tf.zeros((batch_size, 1), "int32")
    ...     def call(self, inputs, state):
    ...         before = tf.concat([state, inputs[:, :-1]], 1)
    ...         x = tf.gather_nd(self.table, tf.stack([before, inputs], -1))
    ...         return x, inputs, inputs[:, -1:]
    >>> tokens = tf.constant([[1, 2, 3]])
    >>> layer = Pairs()
    >>> x, extra, state = layer(tokens, layer.empty_state(1))
    >>> x.shape, state.numpy()
    (TensorShape([1, 3, 4]), array([[3]], dtype=int32))
    """

    extra_dtypes: typing.Any = ()

    def empty_state(self, batch_size: int | tf.Tensor) -> typing.Any:
        """Returns the state before the first token."""
        return ()

    def call(self, inputs: LayerInput, state: typing.Any) -> typing.Any:
        raise NotImplementedError(f"{type(self).__name__} must define `call`.")


@keras.saving.register_keras_serializable(package="keras_performer")
class TokenEmbedding(KeepsLora, keras.layers.Embedding):
    """`keras.layers.Embedding` whose table has a tensor as its gradient.

    In TensorFlow the gradient of a look-up has one row for each token, and several for
    a repeated token. Optimizers that square gradients (Adam, RMSprop) and clipping by
    norm use these rows one by one, which changes training. Here rows are summed first,
    in float32, because a sum in half precision stops growing.
    """

    lora_names = "embeddings", "lora_embeddings_a", "lora_embeddings_b"

    def call(self, inputs):
        if inputs.dtype not in ("int32", "int64"):
            inputs = tf.cast(inputs, "int32")
        table = tf.convert_to_tensor(self.embeddings)
        rows = keras.ops.take(with_dense_gradient(table), inputs, axis=0)
        return tf.cast(rows, self.compute_dtype)

    def quantized_call(self, *args, **kwargs):
        if not self.lora_enabled:
            return super().quantized_call(*args, **kwargs)
        # Keras looks rows up in LoRA's own table here, not in a sum of tables
        attributes, name = vars(self), "lora_embeddings_a"
        table = attributes[name]
        attributes[name] = with_dense_gradient(tf.convert_to_tensor(table))
        try:
            return super().quantized_call(*args, **kwargs)
        finally:
            attributes[name] = table


def with_dense_gradient(table):
    """Returns the table, with a gradient that sums the rows of look-ups."""

    @custom_gradient
    def identity(table):
        def gradient(drows):
            if isinstance(drows, tf.IndexedSlices):
                values = tf.cast(drows.values, compute_dtype(table))
                drows = tf.IndexedSlices(values, drows.indices, drows.dense_shape)
            return tf.cast(tf.convert_to_tensor(drows), table.dtype)

        return tf.identity(table), gradient

    return identity(table)


class AxialPositionEmbedding(keras.layers.Layer):
    """Sums one learned vector for each coordinate of a position.

    Position p of a sequence that runs through a grid in row-major order, such as an
    image of shape (rows, columns, channels), has one coordinate for each axis. A grid
    with one axis is the usual table of positions.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451 (axial position embeddings).
    """

    def __init__(self, grid_shape, output_dim, **kwargs):
        super().__init__(**kwargs)
        self.grid_shape = arguments.sizes("grid_shape", grid_shape)
        self.output_dim = arguments.positive_int("output_dim", output_dim)

    def build(self, positions_shape):
        for axis, length in enumerate(self.grid_shape):
            table = self.add_weight(
                name=f"axis_{axis}",
                shape=(length, self.output_dim),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
            # Keras leaves lists of weights out of a `tf.train.Checkpoint`
            setattr(self, f"axis_{axis}", table)

    @property
    def tables(self):
        """The weights of all axes, a list."""
        return [getattr(self, f"axis_{axis}") for axis in range(len(self.grid_shape))]

    def call(self, positions):
        embedding, found = 0.0, coordinates(positions, self.grid_shape)
        for length, table, coordinate in zip(self.grid_shape, self.tables, found):
            # coordinates repeat: their rows are summed, as in `TokenEmbedding`
            table = with_dense_gradient(tf.cast(table, self.compute_dtype))
            embedding += tf.gather(table, coordinate % length)
        return embedding

    def compute_output_shape(self, positions_shape):
        return (*positions_shape, self.output_dim)
