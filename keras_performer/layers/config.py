"""Configs of layers, which record changes of the layers inside them."""

import functools
import inspect
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments, keras_privates


def must_be_built(layer):
    """Returns the error message for a method that needs a built layer."""
    return (
        f"{type(layer).__name__} must be built first: call it on data, or "
        f"build(input_shape). Received: {vars(layer).get('name')!r}, not built"
    )


class TracesSpec:
    """Mixin that infers outputs by tracing `call`, which covers states and errors."""

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, input_shape, *further_shapes):
        return tuple(input_shape)


class KeepsWithoutEntry:
    """Mixin for layers that keep their weights if a file has none for them.

    Thus attention loads the weights of `keras.layers.MultiHeadAttention`.
    """

    # True for weights of an option that changes what the other weights mean.
    warns_without_entry = False
    # The file that did not fit, a weak reference, and the message.
    _load_error = None

    def load_own_variables(self, store):
        file = getattr(store, "h5_file", None)
        if store.keys():
            try:
                super().load_own_variables(store)
            except Exception as error:
                if file is not None:
                    self._load_error = weakref.ref(file), str(error)
                raise
        elif file and self._load_error and self._load_error[0]() is file:
            # Keras comes again by a second path, where the file has no entry
            raise ValueError(self._load_error[1])
        elif self.warns_without_entry:
            warnings.warn(
                f"The file has no weights of {self.path}, which keeps its initial "
                "values: train it, or make the layer without this option.",
                stacklevel=2,
            )


# -- LoRA, quantization and freezing of layers inside others, kept by their configs.


_KEY = "inner_changes"


class KeepsInnerChanges:
    """Mixin whose config has all arguments, and changes of the layers inside.

    Arguments of `__init__` are read from the attributes of the same names. Changes are
    LoRA, quantization and freezing.

    The config of a dense layer records its LoRA and quantization. Keras ignores this
    config if an outer layer makes the dense layer: loaded dense layers of
    `keras.layers.MultiHeadAttention` have neither, and cannot load the saved weights.
    Here the config of the outer layer has an entry for changes, if there are any, and
    `from_config` makes them again once the inner layers are built. All layers inside a
    frozen layer are frozen, except those that the entry calls trainable.

    Reading an attribute that `build` makes later raises an error that says so.
    """

    def get_config(self):
        config = {**super().get_config(), **_kept_arguments(self)}
        pending = vars(self).get("_pending_changes")
        changes = _changes(self) if pending is None else pending
        return {**config, _KEY: changes} if changes else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if custom_objects:  # even an empty scope would hide outer scopes
            with keras.saving.custom_object_scope(custom_objects):
                return cls.from_config(config)
        made_of = arguments.without_removed(cls, without_inner_changes(config))
        layer = super().from_config(made_of)
        changes = config.get(_KEY)
        if changes or not layer.trainable:
            _when_built(layer, changes or [])
        return layer

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        """Adds lists of layers for `tf.train.Checkpoint`: Keras leaves them out."""
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type != "checkpoint":
            return children
        for name, value in vars(self).items():
            if isinstance(value, list) and not name.startswith("_"):
                for index, one in enumerate(value):
                    if isinstance(one, keras.layers.Layer):
                        children[f"{name}_{index}"] = one
        return children

    def __getattr__(self, name):
        # Python calls this only for attributes that it does not find
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("__") and vars(self).get("built") is False:
            message = f"{must_be_built(self)}, which has no {name!r} yet"
        # an AttributeError, so that hasattr returns False
        raise AttributeError(message, name=name, obj=self)


def _kept_arguments(layer):
    """Returns the arguments of `__init__` that are attributes, also of base classes.

    Keras itself adds its own arguments, such as `dtype`, to a config.
    """
    parameters = {}
    for kind in reversed(type(layer).__mro__):
        if issubclass(kind, KeepsInnerChanges):
            parameters |= inspect.signature(kind.__init__).parameters
    return {
        name: serialized(getattr(layer, name))
        for name, one in parameters.items()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and name not in arguments.OF_KERAS
        and hasattr(layer, name)
    }


def serialized(value):
    """Returns the value of an argument for a config."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, keras.layers.Layer):
        return config_of(value)
    is_object = hasattr(value, "get_config") or callable(value)
    if is_object and not isinstance(value, type):
        return keras.saving.serialize_keras_object(value)
    return value


def without_inner_changes(config):
    """Returns the config of a layer without the entry for changes of inner layers."""
    return {name: value for name, value in config.items() if name != _KEY}


def _changes(layer):
    """Returns the changes of the layers inside a layer, a list for its config."""
    changes, inside = [], list(all_inside(layer))
    owners = {id(owner) for owner, _, _ in inside}
    for owner, path, inner in inside:
        change = {} if id(inner) in owners else change_of(inner)
        if inner.trainable != owner.trainable:
            change["trainable"] = inner.trainable
        if change:
            changes.append({"path": path, **change})
    return changes


def change_of(layer):
    """Returns LoRA and quantization of one layer as a dict, empty if it has neither."""
    change = {}
    if getattr(layer, "lora_enabled", False):
        change |= {"lora_rank": layer.lora_rank, "lora_alpha": layer.lora_alpha}
    mode = layer.dtype_policy.quantization_mode
    if mode is not None:
        change["quantize"] = mode
        options = getattr(layer, "quantization_config", None)
        if options is not None:
            change["config"] = keras.saving.serialize_keras_object(options)
    return change


def _when_built(layer, changes):
    """Changes the layers inside a layer as soon as it is built."""
    if layer.built:
        _apply(layer, changes)
        return
    build = layer.build

    @functools.wraps(build)
    def build_and_change(*args, **kwargs):
        build(*args, **kwargs)
        layer.build = build
        del vars(layer)["_pending_changes"]
        _apply(layer, changes)

    layer.build = build_and_change
    vars(layer)["_pending_changes"] = changes  # setattr would wrap the list


def _apply(layer, changes):
    if not layer.trainable:  # Keras froze only the layers that existed
        for inner in keras_privates.all_layers(layer):
            if inner is not layer:
                inner.trainable = False
    # eagerly, even if the model is built while it is traced: Keras quantizes in NumPy
    with tf.init_scope():
        for change in changes:
            try:
                inner = at(layer, change["path"])
            except LookupError:
                continue  # a layer put there later comes with its own config
            if not isinstance(inner, keras.layers.Layer):
                continue
            trainable = change.get("trainable")
            if trainable:  # before LoRA, which freezes the kernel
                inner.trainable = True
            apply_change(inner, change)
            if trainable is False:  # after LoRA, to freeze its weights, too
                inner.trainable = False


def apply_change(layer, change):
    """Applies to a built layer a change that `change_of` returned."""
    mode = change.get("quantize")
    # the own config of a layer that was passed in may have quantized it already
    if mode is not None and layer.dtype_policy.quantization_mode is None:
        options = {}
        if "config" in change:
            options["config"] = keras.saving.deserialize_keras_object(change["config"])
        layer.quantize(mode, type_check=False, **options)
    if "lora_rank" in change and not layer.lora_enabled:
        layer.enable_lora(change["lora_rank"], change["lora_alpha"])


# -- Layers made from configs: as arguments of other layers, and as copies.


def as_layer(name, value, kind=keras.layers.Layer, or_none=False):
    """Returns the argument `name`, a layer of `kind` or the config of one, as a layer.

    With `or_none`, the argument may be `None`, and `None` is returned.
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    is_right = isinstance(value, kind) or (or_none and value is None)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = [one.__name__ for one in kinds]
    wanted = " or ".join(f"{'an' if x[0] in 'AEIOU' else 'a'} {x}" for x in names)
    wanted += ", the config of one, or None" if or_none else " or the config of one"
    if isinstance(value, type):
        wanted += ". Call the class to make one"
    elif name == "attention":
        wanted += ". Use ExactAttention instead of keras.layers.MultiHeadAttention"
    return arguments.checked(name, value, is_right, wanted)


def config_of(layer):
    """Returns a config from which `as_layer` makes the layer again.

    It lacks the shapes of the built layer, so that the new owner builds the new layer.
    """
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config


# -- Paths of layers inside other layers, in a form that a config can contain.
#
# A path is a list of steps from a layer to one inside it. Each step is a pair:
# `["layer", index]` in a functional or Sequential model, `["attribute", name]`, or
# `["item", key]` in the list or dict at the end of the earlier steps.


def children(layer):
    """Yields the layers directly inside a layer, as pairs of a path and a layer.

    A layer with several paths comes once for each path.
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
    """Yields all layers inside a layer, outermost first: triples of owner, path, layer.

    A layer with several paths comes once.
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
    """Yields pairs of layers with equal paths in two models, once, outermost first.

    The first pair are the models themselves. Layers inside the `leaves`, which are
    layers of the first model, are left out.
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
    """Returns the layers of a functional or Sequential model; `[]` for other layers."""
    in_graph = isinstance(model, keras.Sequential) or hasattr(model, "operations")
    return model.layers if in_graph else []


def _within(value):
    if isinstance(value, keras.layers.Layer):
        yield [], value
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            for steps, child in _within(item):
                yield [["item", key], *steps], child


def at(layer, path):
    """Finds the layer at a path; raises a `LookupError` if there is none."""
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
    """Replaces the layer at a path; raises a `LookupError` if there is none."""
    before = at(layer, path)
    index = max(i for i, (kind, _) in enumerate(path) if kind == "attribute")
    owner, name = at(layer, path[:index]), path[index][1]
    keys = [key for _, key in path[index + 1 :]]
    value = _with_item(getattr(owner, name), keys, child)
    keras_privates.exchange(owner, name, value, before)


def _with_item(value, keys, child):
    """Copies nested lists and dicts, with `child` as the item at `keys`."""
    if not keys:
        return child
    key, *further = keys
    item = _with_item(value[key], further, child)
    if isinstance(value, dict):
        return {**value, key: item}
    return type(value)([*value[:key], item, *value[key + 1 :]])
