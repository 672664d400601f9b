"""Calls of the attention layers of a model, while it runs on data."""

import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from keras_performer.conversion.attention_like import attention_like, is_attention
from keras_performer.layers import AttentionLayer, PerformerAttention, keras_privates
from keras_performer.layers.call_inputs import token_positions, with_starts

_NAMES = (
    "query",
    "value",
    "key",
    "query_mask",
    "value_mask",
    "key_mask",
    "attention_mask",
    "use_causal_mask",
    "segment_ids",
)


def attention_calls(model, batches, options, measure):
    """Measures every call of an attention layer; returns layers that it left out.

    Args:
        model: a Keras model or layer.
        batches: iterable of inputs of the model.
        options: arguments of `PerformerAttention`; `None` where it is not asked for,
            and any `AttentionLayer` reads its calls itself.
        measure: function of a layer, the layer itself or a `PerformerAttention` like
            it, and what that reads: `(query, key, value)` in heads and the `Inputs`.

    Returns:
        Dict of layers that were left out to the reason, a str.
    """
    twins, left_out = {}, {}

    def note(layer, arguments, _):
        if not is_attention(layer) or layer in left_out:
            return
        if arguments.get("state") is not None:
            left_out[layer] = "It is called with a state: give it whole sequences."
            return
        if getattr(layer, "forget_gate", False):
            left_out[layer] = "It has a forget gate, whose decays are not measured."
            return
        try:
            if layer not in twins:
                twins[layer] = _reader(layer, options)
            twin = twins[layer]
            inputs, positions = what_is_read(twin, arguments)
            measure(layer, twin, *_heads(twin, inputs, positions), inputs)
        except ValueError as error:
            left_out[layer] = str(error)

    for batch in batches:
        if not model.built:
            model(batch, training=False)
        with watched(model, note):
            model(batch, training=False)
    return left_out


def _reader(layer, options):
    if options is None and isinstance(layer, AttentionLayer):
        return layer
    return attention_like(PerformerAttention, layer, **(options or {}))


def what_is_read(layer, arguments):
    """Reads the inputs of a call of an attention layer, without a state.

    Args:
        layer: an `AttentionLayer`.
        arguments: dict of the arguments of the call.

    Returns:
        Its `Inputs`, and the positions for `layer.project`.
    """
    given = {name: arguments[name] for name in _NAMES if name in arguments}
    inputs = with_starts(layer.read(**given), None)
    positions = arguments.get("positions")
    positions = token_positions(layer, inputs.query, inputs.key, positions, None)
    return inputs, positions


def _heads(layer, inputs, positions):
    """Query, key and value in heads, float32, as the layer projects them."""
    for name in ("query", "key", "value"):
        heads = layer.project(name, getattr(inputs, name), positions)
        yield tf.cast(heads, tf.float32)


def batches_of(data, max_batches):
    """Inputs of a model, one batch after another.

    Args:
        data: nest of arrays, one batch; or a `tf.data.Dataset`, a `PyDataset` or an
            iterator of batches as `fit` takes them, whose targets are left out.
        max_batches: int, how many are taken.
    """
    if isinstance(data, keras.utils.PyDataset):
        data = map(data.__getitem__, range(len(data)))
    if not isinstance(data, tf.data.Dataset) and not hasattr(data, "__next__"):
        sizes = [getattr(x, "shape", ())[:1] for x in keras.tree.flatten(data)]
        if not sizes or not all(size and size[0] for size in sizes):
            raise ValueError(
                "data must be what the model is called with: an array or a nest of "
                "arrays, of one example at least, or a tf.data.Dataset. Received: "
                f"data of type {type(data).__name__}, arrays of (B,) = {sizes}"
            )
        return [data]
    taken = [batch for batch, _ in zip(data, range(max_batches))]
    if not taken:
        raise ValueError(
            "data must have at least one batch: make an iterator anew once it has "
            f"ended. Received: data of type {type(data).__name__} without batches"
        )
    return [keras.utils.unpack_x_y_sample_weight(batch)[0] for batch in taken]


# -- Calls of the layers inside a model, as they are watched.


@contextlib.contextmanager
def watched(model, note):
    """Notes each call of the layers in a model, and of the model, while it lasts.

    Args:
        model: a built Keras layer.
        note: function of a layer, a dict of the arguments of its `call` by name, and
            its outputs, called where tensors have values; what it returns, unless
            `None`, takes the place of the outputs. Calls inside a call end before it.
    """
    with contextlib.ExitStack() as stack:
        for layer in keras_privates.all_layers(model):
            stack.enter_context(_watched(layer, note))
        yield


@contextlib.contextmanager
def _watched(layer, note):
    original, own = layer.call, vars(layer).get("call")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args, **kwargs):
        outputs = original(*args, **kwargs)
        if not tf.executing_eagerly():  # inside a compiled part: no values yet
            return outputs
        arguments = signature.bind(*args, **kwargs).arguments
        others = note(layer, arguments, outputs)
        return outputs if others is None else others

    layer.call = call
    try:
        yield
    finally:
        if own is None:
            del layer.call
        else:
            layer.call = own
