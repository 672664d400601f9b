"""Checks of what layers and models are called with."""

from numbers import Integral

import keras
import tensorflow as tf

_PAD = "Rows of different lengths are padded first (x.to_tensor()), and masked."


def check_tokens(inputs, max_length):
    """Raises a `ValueError` if inputs are no tokens `(B, T)`, or too many.

    Args:
        inputs: what a model was called with.
        max_length: int, the most tokens.
    """
    if not _is_dense(inputs):
        raise ValueError(
            "inputs must be one int tensor (batch, length). Pass the tensor itself. "
            f"{_PAD} Received: inputs of type {type(inputs).__name__}"
        )
    if len(inputs.shape) != 2 or (inputs.shape[1] or 0) > max_length:
        raise ValueError(
            "inputs must have shape (batch, length) with at most "
            f"max_length={max_length} tokens: make the model with a larger max_length, "
            f"or cut them. Received: inputs of shape {tuple(inputs.shape)}"
        )


def check_ids(inputs, embedding):
    """Raises an error, now or in a running graph, for ids that an embedding has not.

    It would take -1 for its last one. Accelerators leave the check out.
    """
    if isinstance(embedding, keras.layers.Embedding):
        count = embedding.input_dim
        message = (
            f"inputs must hold ids of tokens, ints from 0 to {count - 1}: pad with one "
            "of these, and pass a mask"
        )
        ids = tf.cast(inputs, tf.int64)  # bytes as uint8 cannot be compared with 256
        outside = tf.where((ids < 0) | (ids >= count), ids, tf.zeros_like(ids))
        tf.debugging.assert_equal(outside, tf.zeros_like(ids), message)


def check_inputs(**inputs):
    for name, x in inputs.items():
        if not _is_dense(x):
            _refuse_nest(name, f"{name} of type {type(x).__name__}")
        check_real(name, x)


def check_real(name, x):
    """Refuses what a cast would make real without a word."""
    dtype = _dtype(x)
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise ValueError(
            f"{name} must be a tensor of real numbers: embed what is none, and "
            "take the real or absolute value of complex numbers. Received: "
            f"{name} of dtype {dtype.name}"
        )


def _refuse_nest(name, received):
    raise ValueError(
        f"{name} must be one tensor of shape (batch, length, features). Pass each "
        f"tensor as an argument of its own: layer(query, value, key). {_PAD} Received: "
        f"{received}"
    )


def complete_shapes(query_shape, value_shape=None, key_shape=None):
    """The shapes of query, value and key, checked; a value is a key, too."""
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
    for name, shape in shapes.items():
        is_dict = isinstance(shape, dict)
        if is_dict or not all(x is None or isinstance(x, Integral) for x in shape):
            _refuse_nest(name, f"{name} of shape {shape}")
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "value and key must have the same shape but for the last axis, as each "
            "key has its value. The call is layer(query, value, key). Received: "
            f"value_shape={value_shape}, key_shape={key_shape}"
        )
    if len(query_shape) != len(value_shape):
        raise ValueError(
            "query and value must have as many axes, (batch, ..., features): add the "
            "batch with x[None]. Received: "
            f"query_shape={query_shape}, value_shape={value_shape}"
        )
    return query_shape, value_shape, key_shape


def check_causal_lengths(query, key):
    if not tf.TensorShape(query.shape[1:-1]).is_compatible_with(key.shape[1:-1]):
        raise ValueError(
            "Causal attention needs as many queries as keys (T == S). Received: query "
            f"of shape {tuple(query.shape)} and key of shape {tuple(key.shape)}. For "
            "cross-attention use causal=False; to continue a sequence pass the new "
            "tokens as query, and state."
        )


def check_model(name, model):
    """Raises a `ValueError` for what is no Keras model, such as its file."""
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(
            f"{name} must be a Keras model or layer: load a file by "
            f"keras.saving.load_model first. Received: {name}={model!r}"
        )


def _is_dense(x):
    """Whether x is one tensor, or stands for one: no nest, no rows of many lengths."""
    return hasattr(x, "shape") and not isinstance(x, (tf.RaggedTensor, tf.SparseTensor))


def _dtype(x):
    return tf.as_dtype(keras.backend.standardize_dtype(x.dtype))
