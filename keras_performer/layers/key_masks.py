"""Which keys and which queries are visible, from every form of mask Keras has."""

import numpy as np
import tensorflow as tf

_ADVICE = (
    "These layers, most of which never form the (T, S) matrix, take masks that say "
    "which keys are visible: use attention_mask of shape (B, S), (B, 1, S) or "
    "(B, 1, 1, S), where rank 2 is never Keras' (T, S), key_mask, value_mask or Keras' "
    "implicit mask for padding, query_mask (B, T) for queries that see no key, "
    "causal=True (or use_causal_mask=True) for causality, or "
    "keras.layers.MultiHeadAttention."
)


def visible_keys(key, value_mask=None, key_mask=None, attention_mask=None):
    """Joins all masks of keys into one bool mask, or `None` if there are none.

    Args:
        key: tensor of shape `(B, S, features)`, or with more axes than S.
        value_mask, key_mask: masks of shape `key.shape[:-1]`.
        attention_mask: mask of shape `(B, S)`, `(B, 1, S)` or `(B, 1, 1, S)`; for a key
            with more axes, `key.shape[:-1]`.
    """
    masks = [
        as_mask("value_mask", value_mask, key),
        as_mask("key_mask", key_mask, key),
        as_mask("attention_mask", _without_queries(attention_mask, key), key),
    ]
    visible = None
    for mask in masks:
        if mask is not None:
            visible = mask if visible is None else tf.logical_and(visible, mask)
    return visible


def as_mask(name, mask, x):
    """A mask as bool, one for each token of x; a batch of one is repeated."""
    if mask is None:
        return None
    mask, shape = tf.convert_to_tensor(mask), x.shape[:-1]
    one = tf.TensorShape([1]).concatenate(shape[1:])
    if not (mask.shape.is_compatible_with(shape) or mask.shape.is_compatible_with(one)):
        raise ValueError(
            f"{name} must have shape {tuple(shape)}. Received: {name} of shape "
            f"{tuple(mask.shape)}. {_ADVICE}"
        )
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


def _without_queries(attention_mask, key):
    """An attention mask without its head and query axes, which must be 1."""
    if attention_mask is None or len(key.shape) != 3:
        return attention_mask
    mask = tf.convert_to_tensor(attention_mask)
    middle = mask.shape[1:-1]
    if len(mask.shape) not in (2, 3, 4) or any(size != 1 for size in middle):
        raise ValueError(
            "attention_mask must not differ by query or by head. Received: "
            f"attention_mask of shape {tuple(mask.shape)}. {_ADVICE}"
        )
    return tf.squeeze(mask, list(range(1, 1 + len(middle)))) if len(middle) else mask
