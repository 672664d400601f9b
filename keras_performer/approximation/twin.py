"""A Performer with the weights of another attention layer."""

import inspect

import keras

from keras_performer.layers import (
    ExactAttention,
    PerformerAttention,
    keras_privates,
)

_DENSE_LAYERS = "query_dense", "key_dense", "value_dense", "output_dense"


def is_attention(layer):
    """Whether a layer is softmax attention that a Performer can stand for."""
    kinds = (
        keras.layers.MultiHeadAttention,
        keras.layers.GroupQueryAttention,
        ExactAttention,
        PerformerAttention,
    )
    return isinstance(layer, kinds)


def performer_like(layer, **options):
    """A `PerformerAttention` with the dense layers of an attention layer.

    Args:
        layer: a built `keras.layers.MultiHeadAttention`, `GroupQueryAttention`,
            `ExactAttention` or `PerformerAttention`. The last keeps its random features
            and gains where the options leave them as they are.
        **options: arguments of `PerformerAttention`, in the place of what the layer
            has.

    Raises:
        ValueError: for a layer that is not built, or has what a Performer has not.
    """
    config = layer.get_config()
    _check(layer, config)
    if isinstance(layer, keras.layers.GroupQueryAttention):
        config["num_heads"] = config["num_query_heads"]
        config["key_dim"] = config["head_dim"]
    names = inspect.signature(PerformerAttention).parameters
    known = {name: config[name] for name in names if name in config}
    twin = PerformerAttention(**{**known, "dtype": layer.dtype_policy, **options})
    shapes = layer.get_build_config()
    twin.build_from_config(shapes)
    for name in _DENSE_LAYERS:
        own, given = getattr(twin, name), keras_privates.dense_layer(layer, name)
        own.kernel.assign(given.kernel)
        if own.bias is not None:
            own.bias.assign(given.bias)
    if isinstance(layer, PerformerAttention):
        _copy_features(layer, twin)
    return twin


def _copy_features(layer, twin):
    """Random features and gains, where the twin has the same."""
    pairs = [(layer.log_gain, twin.log_gain)]
    if layer.feature_map == twin.feature_map:
        parameters = layer.projection_matrix, twin.projection_matrix
        pairs += zip(*map(keras.tree.flatten, parameters))
    for given, own in pairs:
        if given is not None and own is not None and given.shape == own.shape:
            own.assign(given)


def _check(layer, config):
    described = f"{layer.name} ({type(layer).__name__})"
    if not layer.built:
        raise ValueError(
            f"A Performer can stand for a built layer only: call {described} first"
        )
    if layer.dtype_policy.quantization_mode is not None:
        raise ValueError(
            f"{described} is quantized: take its weights before `quantize`"
        )
    for name in ("sliding_window", "use_gate"):
        if config.get(name):
            raise ValueError(
                f"{described} has {name}={config[name]}, which a Performer has not"
            )
