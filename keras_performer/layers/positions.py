"""Where the tokens of a call are: what rotary attention and its state count."""

import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.grid import coordinates
from keras_performer.layers.key_masks import one_for_each_token


def checked_rotary(layer, value):
    """The argument `rotary` of an attention layer; `False` becomes `None`."""
    if value is None or value is False:
        return None
    if value is not True:
        if not isinstance(value, (list, tuple)):
            raise ValueError(
                "rotary must be None, True for positions on a line, or the shape of a "
                f"grid, a tuple of positive ints. Received: rotary={value!r}"
            )
        value = arguments.sizes("rotary", value)
    keys = "query" if layer.shared_query_key else "key"
    if not {"query", keys} <= set(layer.projections):
        raise ValueError(
            f"{type(layer).__name__} has no queries and keys to rotate: use "
            f"rotary=None. Received: rotary={value!r}"
        )
    divisor = 2 * _num_axes(value)
    if layer.key_dim % divisor:
        raise ValueError(
            "rotary needs a key_dim divisible by 2 for each axis of positions, here by "
            f"{divisor}: each axis rotates pairs of numbers of its own. Received: "
            f"key_dim={layer.key_dim}, rotary={value!r}"
        )
    return value


def token_positions(layer, query, key, positions, state):
    """Positions for `rotated`, of queries and of keys; `None` without rotary.

    Args:
        layer: an `AttentionLayer`.
        query, key: tensors, as the layer was given them.
        positions: what the call was given, or `None`.
        state: the layer's state after earlier tokens, or `None`.
    """
    if layer.rotary is None:
        if positions is not None:
            raise ValueError(
                "positions are what attention with rotary reads: make the layer with "
                "rotary=True or the shape of a grid, or leave positions out. "
                "Received: positions, and rotary=None"
            )
        return None
    checks = _check_aligned(query, key)
    if positions is not None:
        positions = _checked_positions(layer.rotary, positions, query)
        positions = layer._axes.fold(positions)
    else:
        positions = tf.range(layer._axes.length(query))[tf.newaxis]
        if state is not None:
            positions += state["position"][:, tf.newaxis]
    with tf.control_dependencies(checks):
        return tf.identity(positions)


def rotated(layer, x, positions):
    """Heads `(B, T, N, H)` of queries or keys, rotated if the layer has rotary.

    Args:
        layer: an `AttentionLayer`.
        x: tensor of shape `(B, T, N, H)`.
        positions: int tensor of shape `(B, T)`, or `(B, T, axes)` for the coordinates
            in a grid. B may be 1.
    """
    if layer.rotary is None:
        return x
    if positions is None:
        raise ValueError(
            "Pieces of a sequence need positions with rotary, an int tensor (B, "
            f"tokens). Received: positions=None, rotary={layer.rotary!r}"
        )
    if layer.rotary is not True and len(positions.shape) == 2:
        positions = tf.stack(coordinates(positions, layer.rotary), -1)
    return ops.rotary_embedding(x, positions)


def _num_axes(rotary):
    return 1 if rotary is True else len(rotary)


def _check_aligned(query, key):
    """Checks that there is a key for each query: now, or by the ops it returns."""
    if query is key:
        return []
    message = (
        "rotary needs one key for each query, as both are at the same positions: use "
        "rotary=None for attention to another sequence. Received: query of shape "
        f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
    )
    inner, other = (tf.TensorShape(x.shape[1:-1]) for x in (query, key))
    if not inner.is_compatible_with(other):
        raise ValueError(message)
    if inner.is_fully_defined() and other.is_fully_defined():
        return []
    shapes = tf.shape(query)[1:-1], tf.shape(key)[1:-1]
    return [tf.debugging.assert_equal(*shapes, message)]


def _checked_positions(rotary, positions, query):
    """`positions` of a call as int32, one (or one for each axis) for each token."""
    positions = tf.convert_to_tensor(positions)
    has_axes = rotary is not True and len(positions.shape) == len(query.shape)
    inner = (len(rotary),) if has_axes else ()
    rest = (*query.shape[1:-1], *inner)
    shapes = (query.shape[0], *rest), (1, *rest)
    fits = any(map(positions.shape.is_compatible_with, shapes))
    if not positions.dtype.is_integer or not fits:
        wanted = f"{tuple(query.shape[:-1])}, one for each token"
        if rotary is not True:
            wanted += f", or {(*query.shape[:-1], len(rotary))}, coordinates of each"
        raise ValueError(
            f"positions must be an int tensor of shape {wanted}. Received: positions "
            f"of shape {tuple(positions.shape)} and dtype {positions.dtype.name}"
        )
    positions = tf.cast(positions, tf.int32)
    return one_for_each_token("positions", positions, query, inner)
