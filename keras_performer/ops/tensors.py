"""The type of tensors in signatures."""

import typing

import tensorflow as tf

# All that `tf.convert_to_tensor` takes: a tensor, an array, nested lists of numbers.
TensorLike: typing.TypeAlias = tf.types.experimental.TensorLike
