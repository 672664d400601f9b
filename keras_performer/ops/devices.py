"""What TensorFlow runs on, where a choice depends on it."""

import tensorflow as tf


def has_gpu() -> bool:
    """Whether TensorFlow has a GPU, on which it then puts what can be there."""
    return bool(tf.config.list_logical_devices("GPU"))


def has_tpu() -> bool:
    """Whether TensorFlow has a TPU."""
    return bool(tf.config.list_logical_devices("TPU"))
