"""Converts the attention of trained models to other classes, with the same weights."""

import functools
import inspect
import itertools
import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_performer.conversion.attention_like import (
    KINDS,
    attention_like,
    is_attention,
)
from keras_performer.conversion.cached import is_cached
from keras_performer.conversion.converted import lists_its_layers, with_layers
from keras_performer.conversion.report import ConversionReport, ConvertedLayer
from keras_performer.layers import (
    AttentionLayer,
    ExactAttention,
    LocalAttention,
    PerformerAttention,
    call_inputs,
    keras_privates,
)
from keras_performer.layers import config as sublayers
from keras_performer.layers.choice import check_options


def convert_to_performer(
    model: keras.layers.Layer,
    *,
    exact_window: int | None = 64,
    seed: int | None = None,
    layers: Sequence[str] | None = None,
    **options: typing.Any,
) -> tuple[keras.layers.Layer, ConversionReport]:
    """Converts the attention of a trained model to `PerformerAttention`.

    The new model keeps the weights. Time and memory of its attention are linear in the
    length. Its outputs are estimates: measure their error on your data
    (`approximation_report` does so for each head). Without an exact window, most
    trained models lose most of what they learned.

    It replaces attention at any depth: `keras.layers.MultiHeadAttention` and
    `GroupQueryAttention`, KerasHub's `CachedMultiHeadAttention`, `ExactAttention`, and
    `PerformerAttention`, which gets the new options. Layers with `sliding_window`
    become `LocalAttention`, which computes the same. A layer that cannot be replaced
    stays, and the report says why.

    Args:
        model: a built Keras model or layer, which stays unchanged. Your own classes are
            copied by `get_config` and `from_config`; they must create the attention in
            their constructor or in `build`. Compiled models get a new optimizer.
        exact_window: int W, keys less than W tokens away keep their exact weights;
            `None` for no window. With a window, cross-attention stays. Defaults to
            `64`.
        seed: int, as in `PerformerAttention`. Each layer gets a different seed derived
            from it. Defaults to `None`.
        layers: sequence of str, paths or names of the attention layers to replace. The
            end of a path, such as "block/attention", stands for all layers that it
            fits. Defaults to `None`, all.
        **options: further arguments of `PerformerAttention`, such as `feature_map`.
            Options you leave out come from the replaced layer or have their defaults.

    Returns:
        The new model and a `ConversionReport`; `print` shows it as a table.

    Raises:
        ValueError: if the model is not built or has no attention that can be replaced,
            if no layer has a name in `layers`, or if `PerformerAttention` refuses the
            options.

    Reference:
        Choromanski et al. 2020, arXiv 2009.14794, section 4.3: weights of Transformers
        in Performers.

    Example:

    >>> import keras
    >>> x = start = keras.Input((None, 8))
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> model = keras.Model(start, x)
    >>> performer, report = convert_to_performer(model, exact_window=16)
    >>> print(report)
    layer      was                 is now              note
    attention  MultiHeadAttention  PerformerAttention
    """
    check_options(convert_to_performer, options, [PerformerAttention])
    seeds = _seeds(seed)
    local_options = {x: options[x] for x in ["jit_compile"] if x in options}

    def make_twin(layer):
        # KerasHub's attention to an encoder has this name
        is_cross = is_cached(layer) and layer.name == "cross_attention"
        if is_cross and exact_window is not None:
            raise ValueError(
                "cross-attention has no near keys: convert it with exact_window=None"
            )
        config = layer.get_config()
        if config.get("sliding_window"):
            return attention_like(LocalAttention, layer, **local_options)
        own = dict(options, exact_window=exact_window, seed=next(seeds))
        twin = attention_like(PerformerAttention, layer, **own)
        has_window = config.get("exact_window") is not None
        if exact_window is not None and not has_window and _reads_two_tensors(layer):
            raise ValueError(
                "its query and value are different tensors, as in cross-attention, "
                "which has no near keys: convert it with exact_window=None. If they "
                "have the same positions, use convert_attention(model, "
                "PerformerAttention, exact_window=...)"
            )
        return twin

    return _convert(model, make_twin, layers)


def convert_to_softmax(
    model: keras.layers.Layer, *, layers: Sequence[str] | None = None
) -> tuple[keras.layers.Layer, ConversionReport]:
    """Converts the attention of a model to `ExactAttention`.

    Use it to undo `convert_to_performer`, or to see how a model that was trained with
    `PerformerAttention` works with exact weights. Layers whose feature map does not
    estimate softmax stay. Dropout acts on weights, as in
    `keras.layers.MultiHeadAttention`.

    Args:
        model: as in `convert_to_performer`.
        layers: as in `convert_to_performer`. Defaults to `None`.

    Returns:
        The new model and a `ConversionReport`.

    Raises:
        ValueError: as in `convert_to_performer`.
    """
    return _convert(model, lambda layer: attention_like(ExactAttention, layer), layers)


def convert_attention(
    model: keras.layers.Layer,
    attention: type[AttentionLayer],
    *,
    seed: int | None = None,
    layers: Sequence[str] | None = None,
    **options: typing.Any,
) -> tuple[keras.layers.Layer, ConversionReport]:
    """Converts the attention of a model to another class of attention.

    The new attention must have the weights of `keras.layers.MultiHeadAttention`, as
    `LocalAttention`, `BigBirdAttention` and `LongformerAttention` have (its global
    dense layers start as copies). Attention with other weights is refused.
    `LinearTransformerAttention` accepts the weights, but must be trained on.

    Args:
        model: as in `convert_to_performer`.
        attention: subclass of `AttentionLayer`.
        seed: int, each layer gets a different seed derived from it. Defaults to `None`,
            the seed of each layer.
        layers: as in `convert_to_performer`. Defaults to `None`.
        **options: arguments of `attention`, such as `sliding_window`.

    Returns:
        The new model and a `ConversionReport`.

    Raises:
        ValueError: as in `convert_to_performer`, or if the weights fit no layer, or
            `attention` refuses the options for every layer.

    Example:

    >>> import keras
    >>> from keras_performer.zoo import BigBirdAttention
    >>> x = start = keras.Input((None, 8))
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> model = keras.Model(start, x)
    >>> sparse, report = convert_attention(model, BigBirdAttention, block_size=16)
    >>> print(report)
    layer      was                 is now            note
    attention  MultiHeadAttention  BigBirdAttention
    """
    if not (isinstance(attention, type) and issubclass(attention, AttentionLayer)):
        raise ValueError(
            "attention must be a subclass of AttentionLayer, such as LocalAttention: "
            "pass the class, and its arguments as further options. Received: "
            f"attention={attention!r}"
        )
    check_options(convert_attention, options, [attention])
    seeds = _seeds(seed)

    def make_twin(layer):
        own = {} if seed is None else {"seed": next(seeds)}  # else the layer's
        return attention_like(attention, layer, **{**options, **own})

    return _convert(model, make_twin, layers)


def _seeds(seed):
    """Returns an iterator with a seed for each layer, derived from one seed."""
    return itertools.repeat(None) if seed is None else itertools.count(seed)


def _convert(model, make, names):
    call_inputs.check_model("model", model)
    if not model.built:
        raise ValueError(
            "model must be built, so that it has weights to copy: call it on data "
            f"first. Received: {type(model).__name__} {model.name}, not built"
        )
    found = dict(attention_layers(model))
    chosen = _chosen(list(found), names)
    replacements, rows = {}, []
    for layer, note in found.items():
        note = note if layer in chosen else "not among layers"
        became = ""
        if not note:
            try:
                twin = make(layer)
                _call_as_known(twin, layer)
            except ValueError as error:
                note = str(error)
            else:
                replacements[layer], became = twin, type(twin).__name__
                inside = sublayers.all_inside(layer)
                if any("lora_rank" in sublayers.change_of(x) for _, _, x in inside):
                    note = "its LoRA is part of its kernels now"
        rows.append(ConvertedLayer(layer.path, type(layer).__name__, became, note))
    report = ConversionReport(rows)
    if not replacements:
        raise ValueError(
            "model must have attention that can be replaced, such as "
            "keras.layers.MultiHeadAttention: replace other attention yourself. "
            f"Received: {type(model).__name__} {model.name}"
            + (f" with\n{report}" if rows else " without attention")
        )
    return with_layers(model, replacements), report


def attention_layers(model):
    """Yields attention layers, each with the obstacle to replacing it or ""."""
    lists_layers = functools.cache(lists_its_layers)  # each call reads a whole config
    if is_attention(model):
        yield model, _unknown_class(model)
    for owner, path, layer in sublayers.all_inside(model):
        if is_attention(layer):
            obstacle = _unknown_class(layer)
            if not obstacle and path[-1][0] == "layer" and not lists_layers(owner):
                obstacle = (
                    f"part of the graph that {type(owner).__name__} makes: convert "
                    "keras.Model(model.input, model.output)"
                )
            yield layer, obstacle


def _unknown_class(layer):
    """Returns the obstacle of a subclass, which may have another `call`, or ""."""
    if type(layer) in KINDS or is_cached(layer):
        return ""
    base = next(kind for kind in KINDS if isinstance(layer, kind))
    return f"a subclass of {base.__name__}, which may compute something else"


def _call_as_known(twin, layer):
    """Calls a twin symbolically as its layer is called in graphs, to raise its errors.

    A layer outside of graphs is called with the shapes of its build, if it was built
    for sequences of different lengths.
    """
    calls = keras_privates.symbolic_calls(layer)
    shapes = (layer.get_build_config() or {}).get("shapes_dict", {})
    names = "query_shape", "value_shape", "key_shape"
    shapes = [shapes[name] for name in names if shapes.get(name) is not None]
    lengths = [tf.TensorShape(shape[1:-1]) for shape in shapes]
    if not all(lengths[0].is_compatible_with(length) for length in lengths):
        as_built = [keras.KerasTensor(x, layer.compute_dtype) for x in shapes]
        calls = calls or [(as_built, {})]
    for args, kwargs in calls:
        try:
            twin.compute_output_spec(*args, **kwargs)
        except ValueError as error:  # Keras puts more text before it
            words = str(error).rpartition("Error encountered:\n\n")[-1]
            raise ValueError(words) from error


def _reads_two_tensors(layer):
    """Returns `True` if a call in a graph has neither value nor key equal to query."""
    signature = inspect.signature(layer.call)
    for args, kwargs in keras_privates.symbolic_calls(layer):
        given = signature.bind(*args, **kwargs).arguments
        others = [given[x] for x in ("value", "key") if given.get(x) is not None]
        if others and all(x is not given["query"] for x in others):
            return True
    return False


def _chosen(layers, names):
    if names is None:
        return layers
    chosen = []
    for name in [names] if isinstance(names, str) else names:
        # the path of one layer, or the end of the paths of some
        found = [x for x in layers if x.path == name]
        found = found or [x for x in layers if f"/{x.path}".endswith(f"/{name}")]
        if not found:
            raise ValueError(
                "layers must be names or paths of attention layers of the model: "
                f"{', '.join(layer.path for layer in layers)}. Received: {name!r}"
            )
        chosen += found
    return [x for x in layers if x in chosen]
