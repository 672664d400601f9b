"""What the layers inside a model are called with, and what they return."""

import contextlib
import functools
import typing

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import keras_privates


class Call(typing.NamedTuple):
    """One call of a layer: arrays, in the order of its arguments and outputs."""

    layer: keras.layers.Layer
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def calls_of(model, inputs, change=None):
    """The calls of all layers of a model as it is called once.

    Args:
        model: a Keras layer.
        inputs: nest of arrays.
        change: function of a layer, its first argument and its outputs that returns
            other outputs in their place.

    Returns:
        List of `Call` as they ended, those inside a call before it; the last is that
        of the model.
    """
    calls = []
    if not model.built:
        model(inputs, training=False)
    with contextlib.ExitStack() as stack:
        for layer in keras_privates.all_layers(model):
            stack.enter_context(_watched(layer, calls, change))
        model(inputs, training=False)
    return calls


@contextlib.contextmanager
def _watched(layer, calls, change):
    """Notes each call of a layer for as long as it lasts."""
    original = layer.call

    @functools.wraps(original)
    def call(*args, **kwargs):
        outputs = original(*args, **kwargs)
        if not tf.executing_eagerly():  # inside a compiled part: no values yet
            return outputs
        if change is not None and args:
            outputs = change(layer, args[0], outputs)
        calls.append(Call(layer, _arrays((args, kwargs)), _arrays(outputs)))
        return outputs

    layer.call = call
    try:
        yield
    finally:
        del layer.call


def _arrays(nest):
    return [np.asarray(x) for x in keras.tree.flatten(nest) if tf.is_tensor(x)]
