"""Calls of layers with given values instead of the values of their variables.

Layers read variables, and their dropout updates seeds. A computation that runs again
for a gradient may do neither. There all variables go in as tensors, and new seeds come
out, so that dropout drops the same values both times.
"""

import weakref

import keras
import tensorflow as tf

from keras_performer.layers.keras_privates import value_without_autocast


def split_variables(variables, weights):
    """Splits variables into trained and fixed weights, and seeds, which are neither."""
    known = {id(v) for v in weights}
    trained = [v for v in variables if v.trainable and id(v) in known]
    fixed = [v for v in variables if not v.trainable and id(v) in known]
    return trained, fixed, [v for v in variables if id(v) not in known]


def values_of(variables):
    # not autocast, because gradients are summed in the dtype of these values
    return [value_without_autocast(v) for v in variables]


def owned_by(layer, function):
    """Returns a function that calls `function`, and that gradients may call again.

    TensorFlow keeps gradients of graphs for ever (Keras' `fit` makes it keep the graph
    of a training step). In graphs, therefore, `layer` keeps the function, and with it
    the graph, as long as it lives; the gradient has only a weak reference to it.

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
                "The gradient calls a layer again, but the layer was deleted: keep the "
                "layer, or its model, as long as you use a function that calls it. "
                f"Received: {described}, deleted"
            )
        return kept(*args)

    return call


def call_with_values(function, values, seeds, advice):
    """Calls a function while the variables of its layers have given values.

    `values` are pairs of a variable and its value; `seeds` are the variables that the
    call may update; `advice` is `(who, instead)`, strings for the error. Returns the
    result of the function, and the later values of seeds.

    Raises:
        ValueError: if a layer adds a loss or updates a weight, which a second call
            would repeat.
    """
    scope = keras.StatelessScope(collect_losses=True)
    for update in values:
        scope.add_update(update)  # Keras would round values of an initial mapping
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
