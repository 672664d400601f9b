"""The inputs of a call: checks, masks, segments and positions."""

import math
import typing
from numbers import Integral

import keras
import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.keras_privates import implicit_mask
from keras_performer.ops.shapes import size

_PAD = "Pad rows of different lengths first (x.to_tensor()), and mask the padding."


def check_tokens(inputs, max_length):
    """Raises a `ValueError` unless inputs are `(B, T)`, with at most `max_length`."""
    if not _is_dense(inputs):
        raise ValueError(
            "inputs must be one int tensor (batch, length). Pass the tensor itself. "
            f"{_PAD} Received: inputs of type {type(inputs).__name__}"
        )
    if len(inputs.shape) != 2:
        raise ValueError(
            "inputs must have shape (batch, length). Received: inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    if max_length is not None and (inputs.shape[1] or 0) > max_length:
        raise ValueError(
            f"inputs must have at most max_length={max_length} tokens: make the model "
            "with a larger max_length, or cut them. Received: inputs of shape "
            f"{tuple(inputs.shape)}"
        )


def check_ids(inputs, embedding):
    """Raises an error, now or in a running graph, for ids outside of an embedding.

    The embedding would read -1 as its last id. Accelerators leave this check out.
    """
    if isinstance(embedding, keras.layers.Embedding):
        count = embedding.input_dim
        message = (
            f"inputs must hold ids of tokens, ints from 0 to {count - 1}: pad with one "
            "of these, and pass a mask"
        )
        ids = tf.cast(inputs, tf.int64)  # uint8 cannot be compared with 256
        outside = tf.where((ids < 0) | (ids >= count), ids, tf.zeros_like(ids))
        tf.debugging.assert_equal(outside, tf.zeros_like(ids), message)


def check_inputs(**inputs):
    for name, x in inputs.items():
        if not _is_dense(x):
            _refuse_nest(name, inputs, f"{name} of type {type(x).__name__}")
        check_rank(name, x.shape)
        check_real(name, x)


def check_real(name, x):
    """Refuses complex numbers and strings: a cast would drop imaginary parts."""
    dtype = tf.as_dtype(keras.backend.standardize_dtype(x.dtype))
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise ValueError(
            f"{name} must be a tensor of real numbers: encode and embed strings, and "
            "take the real or absolute value of complex numbers. Received: "
            f"{name} of dtype {dtype.name}"
        )


def tokens(layer, name, x, mask):
    """Returns tokens in the compute dtype, without Keras' mask, and a mask, if any.

    Layers inside would warn about Keras' mask.
    """
    if mask is None:
        mask = implicit_mask(x)
    check_real(name, x)
    return tf.identity(tf.cast(x, layer.compute_dtype)), mask


def check_rank(name, shape):
    """Raises a `ValueError` for a shape that is not `(B, T, features)`."""
    if len(shape) != 3:
        raise ValueError(
            f"{name} must have shape (batch, length, features): embed ids of tokens "
            "first, add a missing batch with x[None], and reshape more axes so that "
            f"tokens are on axis 1. Received: {name} of shape {tuple(shape)}"
        )


def _refuse_nest(name, names, received):
    raise ValueError(
        f"{name} must be one tensor of shape (batch, length, features). Pass each "
        f"tensor as a separate argument: layer({', '.join(names)}). {_PAD} Received: "
        f"{received}"
    )


def complete_shapes(query_shape, value_shape=None, key_shape=None):
    """Returns the checked shapes of query, value and key, missing ones filled in."""
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
    for name, shape in shapes.items():
        is_dict = isinstance(shape, dict)
        if is_dict or not all(x is None or isinstance(x, Integral) for x in shape):
            _refuse_nest(name, shapes, f"{name} of shape {shape}")
        check_rank(name, shape)
    if value_shape[1] != key_shape[1]:
        raise ValueError(_one_value(value_shape, key_shape))
    return query_shape, value_shape, key_shape


def _one_value(value_shape, key_shape):
    return (
        "value and key must have the same shape except for the last axis, because "
        "each key has one value. Call layer(query, value, key). Received: "
        f"value of shape {tuple(value_shape)} and key of shape {tuple(key_shape)}"
    )


def check_lengths(query, key, value, causal, paired=None):
    """Raises an error unless the sizes of inputs fit.

    Unknown sizes are compared in the running graph. If causal, or with `paired`, the
    name of a layer or option for the message, each query must have one key.
    """
    if value is not key:
        message = _one_value(value.shape, key.shape)
        for axis in 0, 1:
            check_equal(size(value, axis), size(key, axis), message)
    if query is key:
        return
    if causal:
        _check_query_and_key(
            query,
            key,
            "Causal attention needs as many queries as keys (T == S). For "
            "cross-attention use causal=False; to continue a sequence pass the new "
            "tokens as query, and state.",
        )
    elif paired is not None:
        _check_query_and_key(
            query,
            key,
            f"{paired} needs one key for each query, because it counts tokens between "
            "them: for cross-attention use PerformerAttention without exact_window, or "
            "ExactAttention.",
        )
    message = "query, key and value must have the same batch size: repeat the smaller "
    _check_query_and_key(query, key, f"{message}one.", axis=0)


def _check_query_and_key(query, key, message, axis=1):
    """Raises an error for different sizes, now or in the ops that it returns."""
    if query is key:
        return []
    shapes = f"query of shape {tuple(query.shape)} and key of shape {tuple(key.shape)}"
    return check_equal(
        size(query, axis), size(key, axis), f"{message} Received: {shapes}"
    )


def check_equal(one, other, message):
    """Raises an error for different sizes, now or in the ops that it returns."""
    if not (isinstance(one, int) and isinstance(other, int)):
        return [tf.debugging.assert_equal(one, other, message)]
    if one != other:
        raise ValueError(message)
    return []


def check_model(name, model):
    """Raises a `ValueError` unless `model` is a Keras model or layer."""
    is_right = isinstance(model, keras.layers.Layer)
    wanted = "a Keras model or layer: load a file by keras.saving.load_model first"
    arguments.checked(name, model, is_right, wanted)


def _is_dense(x):
    """Returns True if x is one dense tensor, symbolic or not: no nest, not ragged."""
    return hasattr(x, "shape") and not isinstance(x, (tf.RaggedTensor, tf.SparseTensor))


class Inputs(typing.NamedTuple):
    """Inputs of a call, checked and complete.

    Attributes:
        query, key, value: the tensors passed to the layer.
        query_mask: bool tensor `(B, T)`, false for rows that see no key; or `None`.
        visible: an `ops.Visibility` of the keys.
        segment_ids: int64 tensor `(B, T)`, or `None`.
    """

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    query_mask: tf.Tensor | None
    visible: ops.Visibility
    segment_ids: tf.Tensor | None = None


# -- Masks of keys and queries, in all forms that Keras has.


_ADVICE = (
    "These layers, most of which never form the (T, S) matrix, take masks that say "
    "which keys are visible: use key_mask (B, S), value_mask or Keras' implicit mask "
    "for padding, attention_mask of shape (B, 1, S) or (B, 1, 1, S), query_mask "
    "(B, T) for queries that see no key, causal=True (or use_causal_mask=True) for "
    "causality, or keras.layers.MultiHeadAttention."
)


def visible_keys(key, value_mask=None, key_mask=None, attention_mask=None):
    """Joins all masks of keys into one bool mask, or `None` if there are none.

    Masks are `(B, S)`; `attention_mask` is `(B, 1, S)` or `(B, 1, 1, S)`.
    """
    visible = None
    if attention_mask is not None:
        shape = tf.convert_to_tensor(attention_mask).shape
        if len(shape) not in (3, 4) or set(shape[1:-1]) != {1}:
            raise ValueError(
                "attention_mask must not differ by query or by head: its shape must be "
                "(B, 1, S) or (B, 1, 1, S) for keys of shape (B, S, features). In "
                "Keras a mask of rank 2 is (T, S). Received: attention_mask of shape "
                f"{tuple(shape)} and key of shape {tuple(key.shape)}. {_ADVICE}"
            )
        visible = as_mask("attention_mask", attention_mask, key, tuple(shape[1:-1]))
    for name, mask in (("value_mask", value_mask), ("key_mask", key_mask)):
        if mask is not None:
            mask = as_mask(name, mask, key)
            visible = mask if visible is None else tf.logical_and(visible, mask)
    return visible


def as_mask(name, mask, x, middle=()):
    """Returns a mask as bool `(B, T)` for tokens of x; repeats a batch of one.

    `middle` are the sizes of axes to remove after the first, all 1.
    """
    if mask is None:
        return None
    mask, shape = tf.convert_to_tensor(mask), (x.shape[0], *middle, *x.shape[1:-1])
    if not _fits(mask, shape):
        raise ValueError(
            f"{name} must have shape {shape}. Received: {name} of shape "
            f"{tuple(mask.shape)}. {_ADVICE}"
        )
    if middle:
        mask = tf.squeeze(mask, list(range(1, 1 + len(middle))))
    return one_for_each_token(name, _as_bool(name, mask), x)


def _as_bool(name, mask):
    if not mask.dtype.is_floating:
        return tf.cast(mask, tf.bool)
    message = (
        f"{name} must be bool, or 1 for true and 0 for false. It is not added to "
        "logits: pass mask >= 0 instead of 0 and large negative numbers"
    )
    is_one = tf.cast(mask, tf.bool)
    checked = tf.debugging.assert_equal(mask, tf.cast(is_one, mask.dtype), message)
    with tf.control_dependencies([checked]):
        return tf.identity(is_one)


def _fits(values, shape):
    """Returns True if values may have the shape, or the shape with batch size 1."""
    return any(map(values.shape.is_compatible_with, (shape, (1, *shape[1:]))))


def one_for_each_token(name, values, x, inner=()):
    """Returns values `(B, T, *inner)` for tokens of x; repeats a batch of one."""
    shape = tf.TensorShape([*x.shape[:-1], *inner])
    if values.shape.is_fully_defined() and values.shape == shape:
        return values
    given, tokens = tf.shape(values), tf.shape(x)[:-1]
    wanted = tf.concat([tokens, inner], 0) if inner else tokens
    # Only the batch axis is repeated; other axes must equal the axes of x.
    is_batch = np.arange(len(shape)) == 0
    repeated = tf.where(is_batch & (given == 1), wanted, given)
    message = f"{name} must have a value for each token: the shapes of {name} and of "
    message += "the tokens, without their last axis, differ"
    equal = tf.debugging.assert_equal(repeated, wanted, message)
    with tf.control_dependencies([equal]):
        return tf.ensure_shape(tf.broadcast_to(values, wanted), shape)


# -- Packed sequences in a layer: ids of segments, and starts of segments.


def token_ids(layer, segment_ids, query, key):
    """Returns the segment ids of a call, int64 `(B, T)`, or `None` if not packed."""
    if segment_ids is None:
        return None
    if not layer.supports_segments:
        raise ValueError(
            f"{type(layer).__name__} cannot keep segments of a packed sequence apart: "
            "call it without segment_ids, with a segment in each row of the batch, or "
            f"use PerformerAttention. Received: segment_ids, and layer={layer.name!r}"
        )
    message = "segment_ids need self-attention, with one key for each query."
    _check_query_and_key(query, key, message)
    return checked_ids(segment_ids, query)


def checked_ids(segment_ids, x):
    """Checks and returns the segment ids of the tokens of x, int64 `x.shape[:-1]`."""
    # int64, because hashes of documents may be ids
    return _ints("segment_ids", tf.convert_to_tensor(segment_ids), x, tf.int64)


def _ints(name, values, x, dtype, inner=(), others=""):
    """Returns ints `(B, T, *inner)` for tokens of x; `others` are shapes for errors."""
    if not (_fits(values, (*x.shape[:-1], *inner)) and values.dtype.is_integer):
        raise ValueError(
            f"{name} must be an int tensor of shape {tuple(x.shape[:-1])}, one for "
            f"each token{others}. Received: {name} of shape {tuple(values.shape)} and "
            f"dtype {values.dtype.name}"
        )
    return one_for_each_token(name, tf.cast(values, dtype), x, inner)


def with_starts(inputs, state, slices=None):
    """Returns `Inputs` with the starts of segments in `visible`."""
    if inputs.segment_ids is None:
        return inputs
    starts = segment_starts(inputs.segment_ids, state, slices)
    return inputs._replace(visible=inputs.visible._replace(starts=starts))


def segment_starts(segment_ids, state, slices=None):
    """Returns starts of segments, bool `(B, T)`.

    The id of the token before the first is in the state, or in the slice before.
    """
    last_id = None
    if slices is not None:
        (last_id,) = slices.neighbour(segment_ids[:, -1])
        # the first slice has none before it
        last_id = tf.where(slices.index == 0, segment_ids[:, 0], last_id)
    if state is not None:
        if "segment" not in state:
            raise ValueError(
                'state must have the entry "segment" in a call with segment_ids: use '
                "get_initial_state(batch_size, packed=True), or give segment_ids from "
                f"the first call on. Received: state with the entries {list(state)}"
            )
        last_id = state["segment"]
    return ops.segment_starts(segment_ids, last_id)


def last_segment(segment_ids, state):
    """Returns a dict with the entry `"segment"` of the later state; `{}` if not packed.

    Without ids, tokens continue the segment of the state.
    """
    earlier = {} if state is None else state
    if segment_ids is not None:
        last = [earlier["segment"][:, tf.newaxis]] if earlier else []
        return {"segment": tf.concat([*last, segment_ids], 1)[:, -1]}
    return {"segment": earlier["segment"]} if "segment" in earlier else {}


# -- Positions of the tokens of a call, for rotary attention.


def checked_rotary(layer, value):
    """Checks and returns the argument `rotary` of a layer; `False` becomes `None`."""
    if value is None or value is False:
        return None
    if value is not True:
        wanted = "None, True for positions on a line, or the shape of a grid, a tuple "
        wanted += "of positive ints"
        arguments.checked("rotary", value, isinstance(value, (list, tuple)), wanted)
        value = arguments.sizes("rotary", value)
    if not layer.can_rotate:
        raise ValueError(
            f"{type(layer).__name__} has no queries and keys to rotate: use "
            f"rotary=None. Received: rotary={value!r}"
        )
    divisor = 2 * (1 if value is True else len(value))
    if layer.key_dim % divisor:
        raise ValueError(
            f"key_dim must be divisible by {divisor} with this rotary, because each "
            "axis of positions rotates its own pairs of numbers. Received: "
            f"key_dim={layer.key_dim}, rotary={value!r}"
        )
    return value


def token_positions(layer, query, key, positions, state, slices=None):
    """Returns the positions of queries and keys, or `None` without rotary."""
    if layer.rotary is None:
        if positions is not None:
            raise ValueError(
                "positions need attention with rotary: make the layer with rotary=True "
                "or the shape of a grid, or leave positions out. Received: positions, "
                "and rotary=None"
            )
        return None
    message = "rotary needs one key for each query, as both have the same positions: "
    message += "use rotary=None for cross-attention."
    checks = _check_query_and_key(query, key, message)
    if positions is not None:
        positions = _checked_positions(layer.rotary, positions, query)
    else:
        positions = next_positions(size(query, 1), state, slices)
    with tf.control_dependencies(checks):
        return tf.identity(positions)


def next_positions(length, state, slices=None):
    """Returns the positions of tokens after a state or after the slices before.

    They are int32 tensors `(B, T)`, or `(1, T)` if the same for all sequences.
    """
    positions = tf.range(length)[tf.newaxis]
    if slices is not None:
        positions += slices.index * length
    return positions if state is None else positions + state["position"][:, tf.newaxis]


def apply_rotary(layer, x, positions):
    """Rotates heads `(B, T, N, H)` of queries or keys.

    Positions are ints `(B, T)`, or coordinates in a grid `(B, T, axes)`. Their B may
    be 1.
    """
    if positions is None:
        raise ValueError(
            "With rotary, each piece of a sequence needs positions: pass an int tensor "
            f"(B, tokens). Received: positions=None, rotary={layer.rotary!r}"
        )
    if layer.rotary is not True and len(positions.shape) == 2:
        positions = tf.stack(coordinates(positions, layer.rotary), -1)
    return ops.rotary_embedding(x, positions)


def _checked_positions(rotary, positions, query):
    """Returns `positions` of a call as int32 `(B, T)` or `(B, T, axes)`."""
    positions = tf.convert_to_tensor(positions)
    if rotary is True:
        return _ints("positions", positions, query, tf.int32)
    axes = (len(rotary),)
    inner = axes if len(positions.shape) == 3 else ()
    others = f", or {(*query.shape[:-1], *axes)}, coordinates of each"
    return _ints("positions", positions, query, tf.int32, inner, others)


def coordinates(positions, grid_shape):
    """Returns the coordinates of positions in row-major order, a list of int tensors.

    The length of the first axis is ignored: positions beyond the grid are in further
    rows.
    """
    stride = math.prod(grid_shape[1:])
    found = [positions // stride]
    for length in grid_shape[1:]:
        stride //= length
        found.append(positions // stride % length)
    return found
