"""Makes attention layers that have the weights of other attention layers."""

import inspect

import keras

from keras_performer import feature_maps
from keras_performer.conversion.cached import WITH_CACHE, is_cached
from keras_performer.layers import keras_privates
from keras_performer.layers.attention import ForgettingAttention
from keras_performer.layers.dense import CopiedDense
from keras_performer.layers.exact import ExactAttention
from keras_performer.layers.local import LocalAttention
from keras_performer.layers.performer import PerformerAttention

_DENSE_LAYERS = "query_dense", "key_dense", "value_dense", "output_dense"
# Classes that compute or estimate softmax attention.
KINDS = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    ExactAttention,
    PerformerAttention,
)


def is_attention(layer):
    """Returns `True` if a layer computes or estimates softmax attention."""
    if isinstance(layer, PerformerAttention):
        return layer.feature_map.estimates_softmax
    return isinstance(layer, KINDS)


def attention_like(kind, layer, **options):
    """Makes attention of another class that has a layer's weights and call signature.

    `kind`, a subclass of `AttentionLayer`, must have the four dense layers of `layer`;
    its other dense layers must start as copies of these. If both are
    `PerformerAttention`, gains are copied, too, and random features unless the options
    have a seed. The options are arguments of `kind`, which override the config of
    `layer`. Raises a `ValueError` if `kind` cannot replace it.
    """
    config = layer.get_config()
    if config.get("sliding_window") is None:  # a class that has it requires an int
        config.pop("sliding_window", None)
    if kind is LocalAttention and "sliding_window" in config:
        options.setdefault("sliding_window", config.pop("sliding_window"))
    _check(layer, kind, config)
    if isinstance(layer, keras.layers.GroupQueryAttention):
        config["num_heads"] = config["num_query_heads"]
        config["key_dim"] = config["head_dim"]
    names = {"name", *inspect.signature(kind).parameters}
    known = {name: config[name] for name in names if name in config}
    if "feature_map" in options and "feature_map" in known:
        maps = map(feature_maps.get, (options["feature_map"], known["feature_map"]))
        if any(x.default_num_random_features is None for x in maps):
            del known["num_random_features"]  # does not apply to the new map
    if options.get("exact_window", known.get("exact_window")) is None:
        known.pop("initial_log_gain", None)
    made_of = {**known, "dtype": layer.dtype_policy, **options}
    twin = (WITH_CACHE[kind] if is_cached(layer) else kind)(**made_of)
    twin.build_from_config(layer.get_build_config())
    _check_weights(twin, config)
    for name in _DENSE_LAYERS:
        _copy_dense(name, getattr(twin, name), keras_privates.dense_layer(layer, name))
    for copy in _copied(twin):
        copy.start_again()
    if not layer.trainable:
        twin.trainable = False  # after build: Keras freezes only existing layers
    if twin.qk_norm and config.get("qk_norm"):
        twin.query_key_norm.log_scale.assign(layer.query_key_norm.log_scale)
    if config.get("forget_gate") and twin.forget_gate:
        twin.forget_gate_layer.set_weights(layer.forget_gate_layer.get_weights())
    if isinstance(layer, PerformerAttention) and kind is PerformerAttention:
        both = layer.log_gain is not None and twin.log_gain is not None
        if both and "initial_log_gain" not in options:
            twin.assign_log_gain(layer.log_gain)
        given, own = layer._random_projection, twin._random_projection
        if given and own and options.get("seed") is None:  # else sample new ones
            shapes = [[weight.shape for weight in x.weights] for x in (given, own)]
            if layer.feature_map == twin.feature_map and shapes[0] == shapes[1]:
                own.set_weights(given.get_weights())
    return twin


def _copied(twin):
    return [x for x in keras_privates.all_layers(twin) if isinstance(x, CopiedDense)]


def _copy_dense(name, own, given):
    pairs = [(x.kernel, x.bias) for x in (own, given)]
    shapes = [[None if w is None else tuple(w.shape) for w in x] for x in pairs]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the weights do not fit: with these options {name} needs a kernel and "
            f"bias of shapes {shapes[0]}. Received: a layer with shapes {shapes[1]}"
        )
    own.kernel.assign(given.kernel)
    if own.bias is not None:
        own.bias.assign(given.bias)
    own.trainable = given.trainable


def _check_weights(twin, config):
    """Raises an error if a twin lacks dense layers or has other weights to train."""
    lacks = [name for name in _DENSE_LAYERS if not hasattr(twin, f"_{name}")]
    known = [*(getattr(twin, name) for name in _DENSE_LAYERS if name not in lacks)]
    known += [*_copied(twin), *([twin.query_key_norm] if config.get("qk_norm") else [])]
    if isinstance(twin, ForgettingAttention) and twin.forget_gate:
        known.append(twin.forget_gate_layer)  # wanted, though it may be untrained
    if isinstance(twin, PerformerAttention) and twin.exact_window is not None:
        known.append(twin._far_gain)
    fitting = {id(weight) for part in known for weight in part.weights}
    further = [x.path for x in twin.trainable_weights if id(x) not in fitting]
    if lacks or further:
        what = "has no " + ", ".join(lacks) if lacks else f"has {', '.join(further)}"
        raise ValueError(
            f"the weights do not fit: {type(twin).__name__} {what}, so it must be "
            "trained"
        )


def _check(layer, kind, config):
    described = f"{layer.name} ({type(layer).__name__})"
    if not layer.built:
        raise ValueError(
            f"{kind.__name__} can replace only a built layer: call {described} first"
        )
    dense = (keras_privates.dense_layer(layer, name) for name in _DENSE_LAYERS)
    if any(x.dtype_policy.quantization_mode is not None for x in (layer, *dense)):
        raise ValueError(
            f"{described} is quantized: convert it before you call `quantize`"
        )
    axes = config.get("attention_axes")  # set by `build`
    if axes is not None and tuple(axes) != (1,):
        raise ValueError(
            f"{kind.__name__} attends over axis 1 of inputs with three axes: reshape "
            f"the inputs of {described} first. Received: attention_axes={tuple(axes)}"
        )
    for name in "sliding_window", "use_gate", "forget_gate":
        has_it = name == "forget_gate" and issubclass(kind, ForgettingAttention)
        if config.get(name) and not has_it:
            raise ValueError(
                f"{described} has {name}={config[name]}, which {kind.__name__} does "
                "not support"
            )
    if is_cached(layer) and kind not in WITH_CACHE:
        raise ValueError(
            f"{described} is called with a cache, which {kind.__name__} does not "
            "support"
        )
