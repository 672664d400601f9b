"""Calls of layers with given values in the places of their variables.

Layers read variables, and their dropout moves seeds on. What is computed again for a
gradient may do neither: there all of them are tensors that go in, and the seeds come
out, so that the second time drops the same values as the first.
"""

import keras

from keras_performer.layers.keras_privates import value_without_autocast


def split_variables(variables, weights):
    """The variables that train, those that stay, and seeds: three lists.

    Args:
        variables: list, what layers read and move on.
        weights: list of the weights among them and others; seeds are none.
    """
    known = {id(v) for v in weights}
    trained = [v for v in variables if v.trainable and id(v) in known]
    fixed = [v for v in variables if not v.trainable and id(v) in known]
    return trained, fixed, [v for v in variables if id(v) not in known]


def values_of(variables):
    # not autocast: gradients are summed in the dtype that goes in
    return [value_without_autocast(v) for v in variables]


def call_with_values(function, values, seeds, advice):
    """Calls a function of no arguments with values of variables.

    Args:
        function: calls layers.
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
