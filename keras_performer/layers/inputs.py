"""What an attention layer knows of a call once it has read its arguments."""

import typing

import tensorflow as tf

from keras_performer import ops


class Inputs(typing.NamedTuple):
    """What a call is about, checked and complete.

    Attributes:
        query, key, value: tensors, as the layer was given them.
        query_mask: bool tensor of the shape of the query without its last axis, false
            for rows that see no key; or `None`.
        visible: an `ops.Visibility` of the keys, over one axis of keys.
        segment_ids: int64 tensor `(B, T)`, or `None`.
    """

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    query_mask: tf.Tensor | None
    visible: ops.Visibility
    segment_ids: tf.Tensor | None = None
