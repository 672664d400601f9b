"""LoRA, quantization and freezing of layers inside others, kept by their configs."""

import functools

import keras
import tensorflow as tf

from keras_performer.layers import keras_privates, places
from keras_performer.layers.unbuilt import SaysWhenUnbuilt

_KEY = "inner_changes"


class KeepsInnerChanges(SaysWhenUnbuilt):
    """What is added to a layer that makes others: its config says what they became.

    A dense layer with LoRA, or quantized, says so in its config. But where it is made
    by the layer around it, nobody asks for that: the dense layers of
    `keras.layers.MultiHeadAttention` come back without either, and do not load what
    was saved. Here the config of the layer around has an entry more, as soon as there
    is something to say, and the same is done to the layers inside once they are built.
    Inside of a layer that is frozen all is, but for parts that are not frozen as it is.
    """

    def get_config(self):
        pending = vars(self).get("_pending_changes")
        changes = _changes(self) if pending is None else pending
        return {**super().get_config(), **({_KEY: changes} if changes else {})}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if custom_objects:  # a scope hides those around it, even an empty one
            with keras.saving.custom_object_scope(custom_objects):
                return cls.from_config(config)
        layer = super().from_config({k: v for k, v in config.items() if k != _KEY})
        changes = config.get(_KEY)
        if changes or not layer.trainable:
            _when_built(layer, changes or [])
        return layer


def without_inner_changes(config):
    """The config of a layer as its class makes it."""
    return {name: value for name, value in config.items() if name != _KEY}


def _changes(layer):
    """What was changed in the layers inside a layer, a list for its config."""
    changes, inside = [], list(places.all_inside(layer))
    owners = {id(owner) for owner, _, _ in inside}
    for owner, path, inner in inside:
        change = {} if id(inner) in owners else change_of(inner)
        if inner.trainable != owner.trainable:
            change["trainable"] = inner.trainable
        if change:
            changes.append({"path": path, **change})
    return changes


def change_of(layer):
    """LoRA and quantization of one layer, a dict for a config; empty for neither."""
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
    """Changes the layers inside a layer, as soon as it has made them."""
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
    vars(layer)["_pending_changes"] = changes  # not an attribute, which Keras wraps


def _apply(layer, changes):
    if not layer.trainable:  # Keras froze only what was there
        for inner in keras_privates.all_layers(layer):
            if inner is not layer:
                inner.trainable = False
    # eagerly, where a model is built while it is traced: Keras quantizes in NumPy
    with tf.init_scope():
        for change in changes:
            try:
                inner = places.at(layer, change["path"])
            except LookupError:
                continue  # who puts a layer there later has its config
            if isinstance(inner, keras.layers.Layer):
                _apply_inside(inner, change)


def _apply_inside(layer, change):
    trainable = change.get("trainable")
    if trainable:  # all of it but what LoRA freezes
        layer.trainable = True
    apply_change(layer, change)
    if trainable is False:  # LoRA, too
        layer.trainable = False


def apply_change(layer, change):
    """Does to a built layer what was done to that of which `change_of` tells."""
    mode = change.get("quantize")
    # the config of a layer that was passed in has it, too
    if mode is not None and layer.dtype_policy.quantization_mode is None:
        options = {}
        if "config" in change:
            config = keras.saving.deserialize_keras_object(change["config"])
            options["config"] = config
        layer.quantize(mode, type_check=False, **options)
    if "lora_rank" in change and not layer.lora_enabled:
        layer.enable_lora(change["lora_rank"], change["lora_alpha"])
