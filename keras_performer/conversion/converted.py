"""Copies of models in which other layers stand, which can be saved and loaded.

`with_layers` makes a copy from the config of a model. Where the config of a layer has
those of the layers inside it, as that of a functional model, the others are written
there. Any other layer becomes `Converted`: its class with a note of what stands where.
"""

import functools
import tempfile
import warnings

import keras

from keras_performer.layers import config as sublayers
from keras_performer.layers import keras_privates


def with_layers(model, replacements):
    """Copies a built model; some layers are replaced by others, of which it has copies.

    Layers of the model are the keys of `replacements`, a dict.
    """
    config = keras.saving.serialize_keras_object(model)
    copy = keras.saving.deserialize_keras_object(
        _rewritten(model, config, replacements),
        custom_objects=_custom_objects(model),
        safe_mode=False,
    )
    try:
        _copy_weights(model, copy, replacements)
    except LookupError as error:
        raise ValueError(
            "model must be like its copy by `get_config`, `from_config` and "
            "`build_from_config`, which make it when it is loaded. The copy of "
            f"{type(model).__name__} {model.name} has no {error.args[0]!r} where the "
            "model has: make layers in `__init__` or `build`, and define `build` for "
            "a call with several tensors"
        ) from error
    return copy


def _custom_objects(model):
    """Classes and functions of a model, so that unregistered ones can be copied."""
    named: dict = {}
    for layer in keras_privates.all_layers(model):
        made_of = [getattr(layer, "made_from", type(layer))]
        if getattr(layer, "compiled", False):
            made_of += keras.tree.flatten(keras_privates.compile_options(layer))
        for x in made_of:
            x = x if hasattr(x, "__name__") else type(x)
            if not x.__module__.startswith(("keras.", "builtins")):  # those are found
                named.setdefault(x.__name__, set()).add(x)
    # of several with one name Keras finds each by its module
    return {name: each.pop() for name, each in named.items() if len(each) == 1}


# -- Layers with others inside than their class makes.


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
        return _config_of(self.name, as_made, exchanged)

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config["layer"])
        exchanged = config["exchanged"]
        # at once; what is not there yet, as soon as the layer is built, which makes it
        later = [change for change in exchanged if not _put(layer, change)]
        layer.__class__ = _class_with_others(type(layer))
        # not as attributes, whose lists Keras would wrap
        vars(layer)["_exchanged"] = [change["paths"] for change in exchanged]
        vars(layer)["_exchanged_when_built"] = later
        return layer

    def build_from_config(self, config):
        super().build_from_config(config)
        for change in vars(self).pop("_exchanged_when_built"):
            if not _put(self, change):
                raise ValueError(
                    f"{type(self).__name__} must make a layer at {change['paths'][0]}, "
                    "in the place of which another is to stand. It has none."
                )


# What Keras adds to the config of an object that is built and compiled.
_OF_INSTANCE = "build_config", "compile_config"


def _config_of(name, as_made, exchanged):
    """The config of a `Converted`, with that of a layer `as_made` by its class.

    Each of `exchanged` is a dict of `"paths"`, all places of a layer inside, and
    `"layer"`, its config.
    """
    layer = {key: value for key, value in as_made.items() if key not in _OF_INSTANCE}
    return {"name": name, "layer": layer, "exchanged": exchanged}


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


# -- Configs in which other layers replace some sublayers.


def lists_its_layers(model):
    """True if the config of a model has those of its layers, as Keras' own classes."""
    return bool(sublayers.graph_layers(model)) and "layers" in model.get_config()


def _rewritten(layer, config, replacements):
    """The config of a layer with other layers inside; itself if nothing changes."""
    if layer in replacements:
        return keras.saving.serialize_keras_object(replacements[layer])
    if lists_its_layers(layer):
        return _rewritten_graph(layer, config, replacements)
    changes = list(_changes(layer, replacements))
    if not any(changed for _, changed in changes):
        return config
    as_made = config["config"]["layer"] if isinstance(layer, Converted) else config
    kept = {name: config[name] for name in _OF_INSTANCE if name in config}
    return {
        "module": Converted.__module__,
        "class_name": Converted.__name__,
        "registered_name": keras.saving.get_registered_name(Converted),
        "config": _config_of(layer.name, as_made, [change for change, _ in changes]),
        **kept,
    }


def _rewritten_graph(model, config, replacements):
    layers, before = sublayers.graph_layers(model), config["config"]["layers"]
    named = {layer.name: layer for layer in layers}
    # a Sequential model names none, and its input may come first
    in_order = [None] * (len(before) - len(layers)) + list(layers)
    entries = []
    for entry, layer in zip(before, in_order):
        if "name" in entry:
            layer = named.get(entry["name"])
        if layer is not None:  # else the input of a Sequential model, or an operation
            in_graph = {x: entry[x] for x in ("name", "inbound_nodes") if x in entry}
            entry = {**_rewritten(layer, entry, replacements), **in_graph}
        entries.append(entry)
    if entries == before:
        return config
    return {**config, "config": {**config["config"], "layers": entries}}


def _changes(layer, replacements):
    """Entries of `exchanged` in `_config_of`, and whether each is new."""
    before = [paths[0] for paths in vars(layer).get("_exchanged", ())]
    found, seen = {}, set()

    def walk(owner, path):
        for steps, child in sublayers.children(owner):
            here = [*path, *steps]
            if id(child) in found:
                found[id(child)][0].append(here)
            elif child in replacements or lists_its_layers(child) or here in before:
                config = keras.saving.serialize_keras_object(child)
                new = _rewritten(child, config, replacements)
                found[id(child)] = [here], new, new is not config
            elif id(child) not in seen:
                seen.add(id(child))
                walk(child, here)

    walk(layer, [])
    for paths, new, changed in found.values():
        if changed or paths[0] in before:
            yield {"paths": paths, "layer": new}, changed


# -- Weights carried over from one model to another that is like it.


def _copy_weights(source, target, replacements):
    """Gives a model the weights of another, its vocabularies, and what is frozen.

    Each layer inside of the source has one in the same place inside of the target,
    which gets the weights of its replacement if there is one.
    """
    copies: dict = {}
    for given, own in sublayers.pairs(source, target, leaves=replacements):
        if not (given.trainable and own.trainable):  # where it is not as it is
            own.trainable = given.trainable
        if copies.setdefault(given, own) is not own and given.weights:
            warnings.warn(
                f"{given.name} stands in several models inside of {source.name}. In "
                "the new one each has a copy of its own: they train apart.",
                stacklevel=5,
            )
        if given in replacements:
            _copy_weights(replacements[given], own, {})
            continue
        if change := sublayers.change_of(given):
            sublayers.apply_change(own, change)
            if "lora_alpha" in change:  # not in Keras' config of a dense layer
                own.lora_alpha = change["lora_alpha"]
            # Keras would save the sum of a kernel and its LoRA
            for x, y in zip(given.variables, own.variables, strict=True):
                y.assign(x)
        else:
            store: dict = {}
            given.save_own_variables(store)
            if store:
                own.load_own_variables(store)
        if hasattr(given, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                given.save_assets(folder)
                own.load_assets(folder)
