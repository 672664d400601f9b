"""Weights that are drawn once and do not train: a pure function of a seed."""

import random

import numpy as np
import tensorflow as tf

MAX_SEED = 2**31 - 1


def first_seed(seed):
    """The seed of a layer as an int from 0 to `MAX_SEED - 1`; `None` draws one."""
    if seed is None:
        # what keras.utils.set_random_seed seeds, as for Keras' own layers
        seed = random.randrange(MAX_SEED)
    return seed % MAX_SEED


def drawn(function):
    """What a function of no arguments draws, for weights that a layer builds."""
    with tf.init_scope():
        values = function()
        if tf.executing_eagerly():  # constants, which every graph can lift
            values = tf.nest.map_structure(np.asarray, values)
    return values


def add_drawn(layer, name, value, trainable=False):
    """Adds a weight of a layer that begins as the drawn value, in its dtype."""
    return layer.add_weight(
        name=name,
        shape=value.shape,
        dtype=value.dtype.name,
        initializer=lambda shape, dtype: tf.convert_to_tensor(value),
        trainable=trainable,
        autocast=False,
    )
