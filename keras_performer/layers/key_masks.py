"""Which keys and which queries are visible, from every form of mask Keras has."""

import numpy as np
import tensorflow as tf

_ADVICE = (
    "These layers, most of which never form the (T, S) matrix, take masks that say "
    "which keys are visible: use key_mask (B, S), value_mask or Keras' implicit mask "
    "for padding, attention_mask of shape (B, 1, S) or (B, 1, 1, S), query_mask "
    "(B, T) for queries that see no key, causal=True (or use_causal_mask=True) for "
    "causality, or keras.layers.MultiHeadAttention."
)


def visible_keys(key, value_mask=None, key_mask=None, attention_mask=None):
    """Joins all masks of keys into one bool mask, or `None` if there are none.

    Args:
        key: tensor of shape `(B, S, features)`, or with more axes than S.
        value_mask, key_mask: masks of shape `key.shape[:-1]`.
        attention_mask: mask of shape `(B, 1, S)` or `(B, 1, 1, S)`; `None` for a key
            with more axes.
    """
    middle = _head_and_query_axes(attention_mask, key)
    masks = [
        as_mask("value_mask", value_mask, key),
        as_mask("key_mask", key_mask, key),
        as_mask("attention_mask", attention_mask, key, middle),
    ]
    visible = None
    for mask in masks:
        if mask is not None:
            visible = mask if visible is None else tf.logical_and(visible, mask)
    return visible


def as_mask(name, mask, x, middle=()):
    """A mask as bool, one for each token of x; a batch of one is repeated.

    Args:
        name: str, the argument.
        mask: mask of shape `x.shape[:-1]`, or `None`.
        x: tensor of shape `(B, ..., features)`.
        middle: the sizes of further axes of the mask after the first: ones.
    """
    if mask is None:
        return None
    mask, (batch, *length) = tf.convert_to_tensor(mask), x.shape[:-1]
    shapes = [(size, *middle, *length) for size in (batch, 1)]
    if not any(mask.shape.is_compatible_with(shape) for shape in shapes):
        raise ValueError(
            f"{name} must have shape {shapes[0]}. Received: {name} of shape "
            f"{tuple(mask.shape)}. {_ADVICE}"
        )
    if middle:
        mask = tf.squeeze(mask, list(range(1, 1 + len(middle))))
    return one_for_each_token(name, _as_bool(name, mask), x)


def _as_bool(name, mask):
    if not mask.dtype.is_floating:
        return tf.cast(mask, tf.bool)
    message = (
        f"{name} must be bool, or 1 where something is seen and 0 where not; it is not "
        "added to logits: pass mask >= 0 for one of 0 and large negative numbers"
    )
    is_one = tf.cast(mask, tf.bool)
    checked = tf.debugging.assert_equal(mask, tf.cast(is_one, mask.dtype), message)
    with tf.control_dependencies([checked]):
        return tf.identity(is_one)


def one_for_each_token(name, values, x, inner=()):
    """Values `(B, ..., *inner)` for the tokens of x; a batch of one is repeated."""
    shape = tf.TensorShape([*x.shape[:-1], *inner])
    if values.shape.is_fully_defined() and values.shape == shape:
        return values
    given, tokens = tf.shape(values), tf.shape(x)[:-1]
    wanted = tf.concat([tokens, inner], 0) if inner else tokens
    # only a batch of one is repeated: the other axes must be those of x
    is_batch = np.arange(len(shape)) == 0
    repeated = tf.where(is_batch & (given == 1), wanted, given)
    message = f"{name} must have a value for each token: the shapes of {name} and of "
    message += "the tokens, without their last axis, differ"
    equal = tf.debugging.assert_equal(repeated, wanted, message)
    with tf.control_dependencies([equal]):
        return tf.ensure_shape(tf.broadcast_to(values, wanted), shape)


def _head_and_query_axes(attention_mask, key):
    """The axes of an attention mask that heads and queries have, which must be 1."""
    if attention_mask is None:
        return ()
    shape = tf.convert_to_tensor(attention_mask).shape
    if len(key.shape) != 3 or len(shape) not in (3, 4) or set(shape[1:-1]) != {1}:
        raise ValueError(
            "attention_mask must not differ by query or by head: its shape must be "
            "(B, 1, S) or (B, 1, 1, S), for keys (B, S, features), as rank 2 is "
            f"(T, S) in Keras. Received: attention_mask of shape {tuple(shape)} and "
            f"key of shape {tuple(key.shape)}. {_ADVICE}"
        )
    return tuple(shape[1:-1])
