"""Copies models with some layers replaced; the copies can be saved and loaded.

`with_layers` makes a copy from the config of a model. The config of a functional or
Sequential model lists its layers, so replacements are written there. Any other layer
with replacements inside becomes `Converted`: its class with a record of them.
"""

import contextlib
import functools
import tempfile
import warnings

import keras

from keras_performer.layers import config as sublayers
from keras_performer.layers import keras_privates


def with_layers(model, replacements):
    """Copies a built model, with copies of other layers in place of some of its layers.

    `replacements` is a dict from layers of the model to the other layers.
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
            "model must have the same layers as its copy by `get_config`, "
            "`from_config` and `build_from_config`, which Keras makes on loading. "
            f"Received: {type(model).__name__} {model.name}, whose copy has no "
            f"{error.args[0]!r}: make layers in `__init__` or `build`, and define "
            "`build` for a call with several tensors"
        ) from error
    return copy


def _custom_objects(model):
    """Returns a model's classes and functions, for copies to find unregistered ones."""
    named: dict = {}
    for layer in keras_privates.all_layers(model):
        made_of = [getattr(layer, "made_from", type(layer))]
        if getattr(layer, "compiled", False):
            made_of += keras.tree.flatten(keras_privates.compile_options(layer))
        for x in made_of:
            x = x if hasattr(x, "__name__") else type(x)
            if not x.__module__.startswith(("keras.", "builtins")):  # Keras finds these
                named.setdefault(x.__name__, set()).add(x)
    # Keras finds objects that share a name by their modules
    return {name: each.pop() for name, each in named.items() if len(each) == 1}


# -- Layers in which some sublayers are replaced.


@keras.saving.register_keras_serializable(package="keras_performer")
class Converted:
    """Mixin for the class of a layer in which other layers replace some sublayers.

    Its config has the config of the layer without replacements, and the paths and
    configs of the replacements. So it can be saved, and loaded wherever
    `keras_performer` is imported. The layer stays an instance of its class.
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
        # replaced now, or after `build` if `build` makes the sublayer
        later = [change for change in exchanged if not _put(layer, change)]
        layer.__class__ = _class_with_others(type(layer))
        # not as attributes, because Keras would wrap their lists
        vars(layer)["_exchanged"] = [change["paths"] for change in exchanged]
        vars(layer)["_exchanged_when_built"] = later
        return layer

    def build_from_config(self, config):
        super().build_from_config(config)
        for change in vars(self).pop("_exchanged_when_built"):
            if not _put(self, change):
                raise ValueError(
                    f"{type(self).__name__} must make a layer at {change['paths'][0]} "
                    "in `__init__` or `build`: its config replaces it. Received: none"
                )


# Entries that Keras adds to the config of a built and compiled object.
_OF_INSTANCE = "build_config", "compile_config"


def _config_of(name, as_made, exchanged):
    """Returns the config of a `Converted`; `as_made` is the config before replacements.

    Each of `exchanged` is a dict of `"paths"`, all paths of one replaced sublayer, and
    `"layer"`, the config of its replacement.
    """
    layer = {key: value for key, value in as_made.items() if key not in _OF_INSTANCE}
    return {"name": name, "layer": layer, "exchanged": exchanged}


def _put(layer, change):
    """Replaces the sublayer at the paths of a change; returns `True` if it exists."""
    try:
        for path in change["paths"]:
            before = sublayers.at(layer, path)
    except LookupError:
        return False
    if not isinstance(before, keras.layers.Layer):
        return False
    config = dict(change["layer"])
    if not before.built:
        del config["build_config"]  # built by what would build `before`
    with contextlib.ExitStack() as scopes:  # for paths as before
        for name in (before.path or "").split("/")[:-1]:
            scopes.enter_context(keras.name_scope(name))
        child = keras.saving.deserialize_keras_object(config)
    for path in change["paths"]:
        sublayers.put(layer, path, child)
    return True


@functools.cache
def _class_with_others(cls):
    """Returns a subclass of `cls` whose instances save their replaced sublayers."""
    members = {"made_from": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
    subclass = type(cls.__name__, (Converted, cls), members)
    return keras.saving.register_keras_serializable("keras_performer", "Converted")(
        subclass
    )


# -- Configs in which some sublayers are replaced.


def lists_its_layers(model):
    """Returns `True` if a model's config lists its layers, as in Keras' own classes."""
    return bool(sublayers.graph_layers(model)) and "layers" in model.get_config()


def _rewritten(layer, config, replacements):
    """Returns a layer's config with replacements; `config` itself if none applies."""
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
    # entries of a Sequential model have no names, and the first may be its input
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
    """Yields entries of `exchanged` in `_config_of`, each with `True` if it is new."""
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


# -- Weights that a model passes to its copy.


def _copy_weights(source, target, replacements):
    """Copies weights, vocabularies and `trainable` from a model to its copy.

    Each layer inside the source has a counterpart at the same path in the target. The
    counterpart of a replaced layer gets the weights of the replacement.
    """
    copies: dict = {}
    for given, own in sublayers.pairs(source, target, leaves=replacements):
        if not isinstance(own, keras.layers.Layer):  # made only in a first call
            raise LookupError(given.name)
        if not (given.trainable and own.trainable):  # else both are `True`
            own.trainable = given.trainable
        if copies.setdefault(given, own) is not own and given.weights:
            warnings.warn(
                f"{given.name} is in several models inside {source.name}. In the new "
                "model each gets its own copy, and the copies train independently.",
                stacklevel=5,
            )
        if given in replacements:
            _copy_weights(replacements[given], own, {})
            continue
        if change := sublayers.change_of(given):
            sublayers.apply_change(own, change)
            if "lora_alpha" in change:  # missing in a dense layer's config
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
