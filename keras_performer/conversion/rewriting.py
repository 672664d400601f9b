"""Configs of models in which other layers replace some sublayers."""

import keras

from keras_performer.conversion.converted import OF_INSTANCE, Converted, config_of
from keras_performer.layers import config as sublayers


def lists_its_layers(model):
    """True if the config of a model has those of its layers.

    That of a class of one's own that makes a functional model has not.
    """
    return bool(sublayers.graph_layers(model)) and "layers" in model.get_config()


def rewritten(layer, config, replacements):
    """The config of a layer with other layers inside; itself if nothing changes.

    Args:
        layer: a built layer.
        config: what `keras.saving.serialize_keras_object` makes of it.
        replacements: dict of layers inside of it to their replacements.
    """
    if layer in replacements:
        return keras.saving.serialize_keras_object(replacements[layer])
    if lists_its_layers(layer):
        return _rewritten_graph(layer, config, replacements)
    changes = list(_changes(layer, replacements))
    if not any(changed for _, changed in changes):
        return config
    as_made = config["config"]["layer"] if isinstance(layer, Converted) else config
    kept = {name: config[name] for name in OF_INSTANCE if name in config}
    return {
        "module": Converted.__module__,
        "class_name": Converted.__name__,
        "registered_name": keras.saving.get_registered_name(Converted),
        "config": config_of(layer.name, as_made, [change for change, _ in changes]),
        **kept,
    }


def _rewritten_graph(model, config, replacements):
    layers, before = sublayers.graph_layers(model), config["config"]["layers"]
    named = {layer.name: layer for layer in layers}
    # a Sequential model names none, and its input may come first
    in_order = [None] * (len(before) - len(layers)) + list(layers)

    def entry_of(entry, layer):
        if "name" in entry:
            layer = named.get(entry["name"])
        if layer is None:  # the input of a Sequential model, or an operation
            return entry
        new = rewritten(layer, entry, replacements)
        in_graph = {name: entry[name] for name in _IN_GRAPH if name in entry}
        return {**new, **in_graph}

    entries = [entry_of(*pair) for pair in zip(before, in_order)]
    if entries == before:
        return config
    return {**config, "config": {**config["config"], "layers": entries}}


# What the config of a functional model says of a layer beside its config.
_IN_GRAPH = "name", "inbound_nodes"


def _changes(layer, replacements):
    """Entries of `converted`, and whether each is new."""
    before = [paths[0] for paths in vars(layer).get("_exchanged", ())]
    found, seen = {}, set()

    def walk(owner, path):
        for steps, child in sublayers.children(owner):
            here = [*path, *steps]
            if id(child) in found:
                found[id(child)][0].append(here)
            elif child in replacements or lists_its_layers(child) or here in before:
                config = keras.saving.serialize_keras_object(child)
                found[id(child)] = (
                    [here],
                    config,
                    rewritten(child, config, replacements),
                )
            elif id(child) not in seen:
                seen.add(id(child))
                walk(child, here)

    walk(layer, [])
    for paths, config, new in found.values():
        if new is not config or paths[0] in before:
            yield {"paths": paths, "layer": new}, new is not config
