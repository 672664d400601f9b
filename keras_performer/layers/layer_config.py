"""Layers as arguments of layers: given as such or by their config."""

import keras


def as_layer(name, value, kind=keras.layers.Layer):
    """`value` as a layer of that kind; `None` stays `None`.

    Args:
        name: str, the name of the argument.
        value: a layer, the dict that `config_of` made of one, or `None`.
        kind: class that the layer must be of.
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"{name} must be a {kind.__name__}, the config of one, or None. Received: "
            f"{name}={value!r}"
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
