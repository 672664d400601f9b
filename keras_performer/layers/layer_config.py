"""Layers made from configs: as arguments of other layers, and as copies."""

import keras

from keras_performer.layers.arguments import with_article
from keras_performer.layers.inner_changes import without_inner_changes

# What an error of `as_layer` advises, by the name of the argument.
_INSTEAD = {
    "attention": "ExactAttention has the place of keras.layers.MultiHeadAttention. "
}


def as_layer(name, value, kind=keras.layers.Layer):
    """`value` as a layer of that kind; `None` stays `None`.

    Args:
        name: str, the name of the argument.
        value: a layer, the dict that `config_of` made of one, or `None`.
        kind: class that the layer must be of, or a tuple of classes.
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if value is not None and not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(with_article(one.__name__) for one in kinds)
        raise ValueError(
            f"{name} must be {wanted}, the config of one, or None. "
            f"{_INSTEAD.get(name, '')}Received: {name}={value!r}"
        )
    return value


def config_of(layer):
    """What `as_layer` makes the layer from again, a dict; `None` of `None`.

    Without the shapes that it was built for, so that it is built where it then belongs.
    """
    if layer is None:
        return None
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config


def built_copy(attention, shapes):
    """An attention layer like this one with weights, which draws none of them.

    What the layer itself will draw stays the same.

    Args:
        attention: an `AttentionLayer`.
        shapes: shapes of query, value and key; `None` for those not given.
    """
    quiet = {"kernel_initializer": "zeros", "bias_initializer": "zeros", "seed": 0}
    config = without_inner_changes(attention.get_config())
    copy = type(attention).from_config({**config, **quiet})
    copy.build(*shapes)
    return copy
