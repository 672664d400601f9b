"""Devices of TensorFlow, where a choice depends on them."""

import tensorflow as tf


def has_gpu() -> bool:
    """True if TensorFlow has a GPU, on which it then puts what can be there."""
    return bool(tf.config.list_logical_devices("GPU"))


def has_tpu() -> bool:
    """True if TensorFlow has a TPU."""
    return bool(tf.config.list_logical_devices("TPU"))
