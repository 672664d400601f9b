"""Layers and models with other layers inside than their class makes."""

import functools

import keras

from keras_performer.layers import config as sublayers


@keras.saving.register_keras_serializable(package="keras_performer")
class Converted:
    """Mixin for the class of a layer in which other layers replace some sublayers.

    Its config has that of the layer as its class makes it, and which layers stand where
    in the place of what: so it can be saved, and loaded wherever `keras_performer` is
    imported. The layer stays an instance of its class.
    """

    def get_config(self):
        serialized = keras.saving.serialize_keras_object
        exchanged = [
            {"paths": paths, "layer": serialized(sublayers.at(self, paths[0]))}
            for paths in vars(self)["_exchanged"]
        ]
        kind = type(self)
        self.__class__ = kind.made_from
        try:
            as_made = serialized(self)
        finally:
            self.__class__ = kind
        return config_of(self.name, as_made, exchanged)

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config["layer"])
        return converted(layer, config["exchanged"])

    def build_from_config(self, config):
        super().build_from_config(config)
        for change in vars(self).pop("_exchanged_when_built"):
            if not _put(self, change):
                raise ValueError(
                    f"{type(self).__name__} must make a layer at {change['paths'][0]}, "
                    "in the place of which another is to stand. It has none."
                )


# What Keras adds to the config of an object that is built and compiled.
OF_INSTANCE = "build_config", "compile_config"


def config_of(name, as_made, exchanged):
    """The config of a `Converted`.

    Args:
        name: str, that of the layer.
        as_made: dict, what `serialize_keras_object` makes of it as its class makes it.
        exchanged: as in `converted`.
    """
    layer = {key: value for key, value in as_made.items() if key not in OF_INSTANCE}
    return {"name": name, "layer": layer, "exchanged": exchanged}


def converted(layer, exchanged):
    """Puts other layers into one, which becomes `Converted`.

    Args:
        layer: a new layer, built or not.
        exchanged: list of dicts of `"paths"`, where a layer is to stand, and `"layer"`,
            its config. It takes its place at once; where there is none yet, as soon as
            the layer is built, which makes it.

    Returns:
        The layer.
    """
    later = [change for change in exchanged if not _put(layer, change)]
    layer.__class__ = _class_with_others(type(layer))
    # not as attributes, whose lists Keras would wrap
    vars(layer)["_exchanged"] = [change["paths"] for change in exchanged]
    vars(layer)["_exchanged_when_built"] = later
    return layer


def _put(layer, change):
    """Puts a layer in place of its sublayers; returns `True` if they exist."""
    try:
        for path in change["paths"]:
            before = sublayers.at(layer, path)
    except LookupError:
        return False
    if not isinstance(before, keras.layers.Layer):
        return False
    config = dict(change["layer"])
    if not before.built:
        del config["build_config"]  # whatever builds the other builds this one
    child = keras.saving.deserialize_keras_object(config)
    for path in change["paths"]:
        sublayers.put(layer, path, child)
    return True


@functools.cache
def _class_with_others(cls):
    """A subclass that saves what stands in an instance."""
    members = {"made_from": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
    subclass = type(cls.__name__, (Converted, cls), members)
    return keras.saving.register_keras_serializable("keras_performer", "Converted")(
        subclass
    )
