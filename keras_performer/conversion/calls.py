"""Reads the calls of a model's attention layers while it runs on data."""

import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from keras_performer.conversion.attention_like import attention_like, is_attention
from keras_performer.layers import AttentionLayer, PerformerAttention, keras_privates
from keras_performer.layers.call_inputs import token_positions, with_starts


def attention_calls(model, batches, options, measure):
    """Measures every call of an attention layer; returns layers left out, with reasons.

    `measure` gets the layer, its twin, float32 heads of query, key and value, and the
    `Inputs`. The twin makes the heads. It is a `PerformerAttention` with the options
    and the layer's weights; if options are `None`, an `AttentionLayer` is its own twin.
    """
    left_out = {}

    @functools.cache
    def twin_of(layer):
        if options is None and isinstance(layer, AttentionLayer):
            return layer
        return attention_like(PerformerAttention, layer, **(options or {}))

    def note(layer, arguments, _):
        if not is_attention(layer) or layer in left_out:
            return
        try:
            if arguments.get("state") is not None:
                raise ValueError("It is called with a state: give it whole sequences.")
            if getattr(layer, "forget_gate", False):
                raise ValueError("It has a forget gate, whose decays are not measured.")
            twin = twin_of(layer)
            inputs, positions = what_is_read(twin, arguments)
            names = "query", "key", "value"
            heads = [twin.project(x, getattr(inputs, x), positions) for x in names]
            measure(layer, twin, *(tf.cast(x, tf.float32) for x in heads), inputs)
        except ValueError as error:
            left_out[layer] = str(error)

    for batch in batches:
        watch(model, batch, note)
    return left_out


def what_is_read(layer, arguments):
    """Returns `Inputs` of a call without a state, and positions for `layer.project`.

    In self-attention without a query mask, keys that a mask hides are padding: their
    queries are masked, too, so that they do not count.
    """
    names = inspect.signature(layer.read).parameters
    given = {name: arguments[name] for name in names if name in arguments}
    inputs = with_starts(layer.read(**given), None)
    if inputs.query_mask is None and _same(inputs.key, arguments["query"]):
        inputs = inputs._replace(query_mask=inputs.visible.key_mask)
    positions = arguments.get("positions")
    return inputs, token_positions(layer, inputs.query, inputs.key, positions, None)


def nothing_found(model, wanted, reasons):
    """Returns the error for a model without a layer as wanted; equal reasons once."""
    return ValueError(
        f"model must have {wanted}. Received: {type(model).__name__} {model.name} "
        f"without such a layer. {' '.join(dict.fromkeys(reasons))}".strip()
    )


def require_tokens(num_tokens, left_out, where, model, wanted):
    """Leaves out layers that too few tokens reach; raises an error if none remains.

    `num_tokens` is a dict from layers to pairs: the layer's `key_dim` and its number of
    tokens in the batches that `where` names. The others are as in `nothing_found`.
    """
    few = ""
    for layer, (key_dim, number) in num_tokens.items():
        if layer in left_out:
            continue  # for another reason
        if not number:
            left_out[layer] = "No token of data reaches it."
        elif number < key_dim:
            left_out[layer] = few = (
                f"data must have at least key_dim={key_dim} tokens for {layer.path} in "
                f"{where}; a few thousand are better. Received: {number} tokens"
            )
    if num_tokens.keys() <= left_out.keys():
        if few:
            raise ValueError(few)
        raise nothing_found(model, wanted, left_out.values())


def batches_of(data, max_batches):
    """Returns a list of batches, each of them inputs of a model.

    `data` is one batch, a nest of arrays; or a `tf.data.Dataset`, a `PyDataset` or an
    iterator of batches as `fit` takes them. Targets are dropped.
    """
    if isinstance(data, keras.utils.PyDataset):
        data = map(data.__getitem__, range(len(data)))
    if not isinstance(data, tf.data.Dataset) and not hasattr(data, "__next__"):
        sizes = [getattr(x, "shape", ())[:1] for x in keras.tree.flatten(data)]
        if not sizes or not all(size and size[0] for size in sizes):
            raise ValueError(
                "data must be inputs of the model: an array or a nest of arrays with "
                "at least one example, or a tf.data.Dataset. Received: "
                f"data of type {type(data).__name__}, arrays of (B,) = {sizes}"
            )
        return [data]
    taken = [batch for batch, _ in zip(data, range(max_batches))]
    if not taken:
        raise ValueError(
            "data must have at least one batch: make a new iterator if this one has "
            f"ended. Received: data of type {type(data).__name__} without batches"
        )
    return [keras.utils.unpack_x_y_sample_weight(batch)[0] for batch in taken]


def watch(model, inputs, note):
    """Calls a model, and `note` after each call of the model or of a layer inside.

    `note` gets the layer, a dict of the arguments of its `call` by name, and its
    outputs. A result other than `None` replaces the outputs. Layers inside a layer are
    noted before it. Calls in compiled parts, where tensors have no values, are skipped.
    """
    if not model.built:
        model(inputs, training=False)
    with contextlib.ExitStack() as undo:
        for layer in keras_privates.all_layers(model):
            own = vars(layer).get("call")
            layer.call = _noted(layer, note)
            if own is None:
                undo.callback(delattr, layer, "call")
            else:
                undo.callback(setattr, layer, "call", own)
        model(inputs, training=False)


def _noted(layer, note):
    original = layer.call
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args, **kwargs):
        outputs = original(*args, **kwargs)
        if not tf.executing_eagerly():  # inside a compiled part: no values yet
            return outputs
        arguments = signature.bind(*args, **kwargs).arguments
        others = note(layer, arguments, outputs)
        return outputs if others is None else others

    return call


def _same(one, other):
    """Returns True for equal tensors: autocast copies query and value separately."""
    if one is other:
        return True
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and bool(tf.reduce_all(one == other))
