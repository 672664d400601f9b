"""What an embedding can do that is more than a table."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers.signatures import LayerInput


class EmbeddingLayer(keras.layers.Layer):
    """The base class of embeddings that remember inputs, or tell the head something.

    Any layer that turns inputs `(B, T)` into `(B, T, hidden_dim)` can be the embedding
    of a `PerformerLM`. One that needs more is a subclass of this. It defines

        call(inputs, state)

    which returns `(x, extra, state)`: the embedded tokens; a nest of tensors
    `(B, T, ...)` that go round the blocks to the model's head, which is then called
    with `(x, extra)`; and the state after these inputs. Where the state holds anything,
    `empty_state(batch_size)` is it before the first token, a nest of tensors with the
    batch first. The class attribute `extra_dtypes` has the dtypes of `extra`, `()` for
    nothing.

    Args:
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Example:

    Tokens that are embedded together with the token before, and reach the head:

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
        """The state before the first token."""
        return ()

    def call(self, inputs: LayerInput, state: typing.Any) -> typing.Any:
        raise NotImplementedError(f"{type(self).__name__} must define `call`.")
