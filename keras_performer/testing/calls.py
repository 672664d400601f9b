"""The calls of all layers of a model, to compare with those of another time."""

import typing

import keras
import numpy as np
import tensorflow as tf

from keras_performer.conversion.calls import watch


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

    def note(layer, arguments, outputs):
        if change is not None and arguments:
            outputs = change(layer, next(iter(arguments.values())), outputs)
        calls.append(Call(layer, _arrays(dict(arguments)), _arrays(outputs)))
        return outputs

    watch(model, inputs, note)
    return calls


def _arrays(nest):
    return [np.asarray(x) for x in keras.tree.flatten(nest) if tf.is_tensor(x)]
