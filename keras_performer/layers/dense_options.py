"""The options that an attention layer hands to each of its dense layers."""

import keras

_NAMES = (
    "kernel_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "bias_constraint",
)


def dense_options(layer):
    """Those options of an `AttentionLayer`, by name."""
    return {name: getattr(layer, name) for name in _NAMES}


def serialized_options(layer):
    """The same as entries of the layer's config."""
    config = {}
    for name, value in dense_options(layer).items():
        kind = getattr(keras, name.split("_")[1] + "s")  # keras.initializers, ...
        config[name] = kind.serialize(value)
    return config
