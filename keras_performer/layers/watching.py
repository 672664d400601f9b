"""What the layers inside a model are called with, and what they return."""

import contextlib
import functools
import inspect

import tensorflow as tf

from keras_performer.layers import keras_privates


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
