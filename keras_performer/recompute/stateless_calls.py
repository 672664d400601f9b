"""Calls of layers with given values in the places of their variables.

Layers read variables, and their dropout moves seeds on. What is computed again for a
gradient may do neither: there all of them are tensors that go in, and the seeds come
out, so that the second time drops the same values as the first.
"""

import weakref

import keras
import tensorflow as tf

from keras_performer.layers.keras_privates import value_without_autocast


def split_variables(variables, weights):
    """The variables that train, those that stay, and seeds, which are no weights."""
    known = {id(v) for v in weights}
    trained = [v for v in variables if v.trainable and id(v) in known]
    fixed = [v for v in variables if not v.trainable and id(v) in known]
    return trained, fixed, [v for v in variables if id(v) not in known]


def values_of(variables):
    # not autocast: gradients are summed in the dtype that goes in
    return [value_without_autocast(v) for v in variables]


def owned_by(layer, function):
    """A function that calls layers, for a gradient to call again.

    TensorFlow keeps gradients of graphs for ever (Keras' `fit` makes it keep the graph
    of a training step): there `layer` keeps the function, and the gradient only a
    weak reference to it.

    Raises:
        ReferenceError: when the function is called and the layer is gone.
    """
    if tf.executing_eagerly():
        return function
    name = "functions_of_gradients"
    setattr(layer, name, (*getattr(layer, name, ()), function))
    reference = weakref.ref(function)
    described = f"{type(layer).__name__} {layer.name!r}"

    def call(*args):
        kept = reference()
        if kept is None:
            raise ReferenceError(
                "A gradient computes a layer again, and needs it: keep the layer, or "
                "the model that it is in, for as long as a function that calls it. "
                f"Received: {described}, which is gone"
            )
        return kept(*args)

    return call


def call_with_values(function, values, seeds, advice):
    """Calls a function of no arguments, which calls layers, with values of variables.

    Args:
        values: list of pairs of a variable and its value, a tensor.
        seeds: list of those variables that the call may move on.
        advice: `(who, instead)`, strings for the error.

    Returns:
        `(result, values)`: what the function returned, and the values of seeds then.

    Raises:
        ValueError: if a layer adds a loss or updates a weight, which a call that is
            made again would repeat.
    """
    scope = keras.StatelessScope(collect_losses=True)
    for update in values:
        scope.add_update(update)  # as an initial mapping Keras would round them
    with scope:
        result = function()
    moving = {id(v) for v in seeds}
    changed = [
        v.path
        for v, x in values
        if id(v) not in moving and scope.get_current_value(v) is not x
    ]
    if scope.losses or changed:
        who, instead = advice
        raise ValueError(
            f"{who}, a call can neither add losses (add_loss, an activity regularizer) "
            "nor update weights that do not train. Received: "
            f"{len(scope.losses)} losses, and updates of {changed}. Leave them out, or "
            f"use {instead}."
        )
    return result, [scope.get_current_value(v) for v in seeds]
