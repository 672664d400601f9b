"""Where layers stand inside other layers, as paths that can be saved.

A path is a list of steps from a layer to one inside it, each a pair: `["layer", index]`
of a functional or Sequential model, `["attribute", name]`, or `["item", key]` of the
list or dict that the steps before lead to.
"""

import keras

from keras_performer.layers import keras_privates


def children(layer):
    """The layers right inside a layer, as pairs of a path and a layer.

    A layer that stands in several places comes once for each.
    """
    graph = graph_layers(layer)
    for index, child in enumerate(graph):
        yield [["layer", index]], child
    for name, value in vars(layer).items():
        if name not in keras_privates.NOTED_LAYERS:
            for steps, child in _within(value):
                if not any(child is other for other in graph):
                    yield [["attribute", name], *steps], child


def all_inside(layer):
    """All layers inside a layer, from outside inwards: triples of owner, path, layer.

    A layer that stands in several places comes once.
    """
    seen, waiting = set(), [([], layer)]
    while waiting:
        path, owner = waiting.pop(0)
        for steps, child in children(owner):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(([*path, *steps], child))
                yield owner, [*path, *steps], child


def pairs(one, other, leaves=()):
    """Layers in the same places of two models, each pair once, from outside inwards.

    Args:
        one, other: layers; the other has a layer in each place where the one has.
        leaves: layers of the one that are not looked into.

    Yields:
        Pairs of layers, the first the two themselves.
    """
    seen, waiting = set(), [(one, other)]
    while waiting:
        pair = waiting.pop(0)
        if id(pair[1]) in seen:
            continue
        seen.add(id(pair[1]))
        yield pair
        if pair[0] not in leaves:
            waiting += [(child, at(pair[1], path)) for path, child in children(pair[0])]


def graph_layers(model):
    """The layers of the graph of a functional or Sequential model; else nothing."""
    in_graph = isinstance(model, keras.Sequential) or hasattr(model, "operations")
    return model.layers if in_graph else []


def _within(value):
    if isinstance(value, keras.layers.Layer):
        yield [], value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            for steps, child in _within(item):
                yield [["item", index], *steps], child
    elif isinstance(value, dict):
        for key, item in value.items():
            for steps, child in _within(item):
                yield [["item", key], *steps], child


def at(layer, path):
    """What stands at a path; raises a `LookupError` if nothing does."""
    for kind, key in path:
        try:
            if kind == "layer":
                layer = layer.layers[key]
            elif kind == "attribute":
                layer = getattr(layer, key)
            else:
                layer = layer[key]
        except (AttributeError, IndexError, TypeError) as error:
            raise LookupError(key) from error
    return layer


def put(layer, path, child):
    """Puts a layer at a path, in the place of the layer that stands there.

    Raises:
        LookupError: if nothing stands there.
    """
    before = at(layer, path)
    index = max(i for i, (kind, _) in enumerate(path) if kind == "attribute")
    owner, name = at(layer, path[:index]), path[index][1]
    value = _with_item(
        getattr(owner, name), [key for _, key in path[index + 1 :]], child
    )
    keras_privates.exchange(owner, name, value, before)


def _with_item(value, keys, child):
    """A copy of nested lists and dicts in which another item stands at `keys`."""
    if not keys:
        return child
    key, *further = keys
    item = _with_item(value[key], further, child)
    if isinstance(value, dict):
        return {**value, key: item}
    return type(value)([*value[:key], item, *value[key + 1 :]])
