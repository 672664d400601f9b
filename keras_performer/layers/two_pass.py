"""Bidirectional self-attention in two passes over the chunks of a sequence.

The first pass sums up the keys and values of all chunks, the second answers the queries
of each; a layer whose whole sequence is at hand does both at once.
"""

import tensorflow as tf

from keras_performer import ops


def absorb_keys(layer, x, mask=None, *, state):
    """The state after the keys and values of a chunk.

    Args:
        layer: a built `PerformerAttention`.
        x: tensor of shape `(B, tokens, dim)`.
        mask: bool tensor of shape `(B, tokens)`, false for keys that nothing sees.
        state: from `layer.initial_state` or the chunk before.
    """
    return ops.absorb_keys(
        layer._key_dense(x), layer._value_dense(x), _kernel(layer), mask, state
    )


def answer_queries(layer, x, mask=None, *, state, training=None):
    """What the layer returns for a chunk, once all keys are in the state.

    Args:
        layer: a built `PerformerAttention`.
        x: tensor of shape `(B, tokens, dim)`.
        mask: bool tensor of shape `(B, tokens)`; rows where it is false see no key.
        state: after the last chunk's `absorb_keys`.
        training: bool, whether to apply dropout.

    Returns:
        Tensor of shape `(B, tokens, output_shape)`.
    """
    attended = ops.answer_queries(layer._query_dense(x), _kernel(layer), state)
    if mask is not None:
        attended *= tf.cast(mask, attended.dtype)[..., tf.newaxis, tf.newaxis]
    attended = layer._dropout_layer(attended, training=training)
    return layer._output_dense(attended)


def _kernel(layer):
    matrix = layer.projection_matrix
    matrix = None if matrix is None else tf.convert_to_tensor(matrix)
    return layer.feature_map.kernel(matrix)
