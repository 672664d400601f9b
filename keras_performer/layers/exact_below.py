"""The choice between exact and linear attention by the length of the input."""

import tensorflow as tf

from keras_performer.ops.shapes import size


def by_length(exact_below, exact, linear, inputs, constants):
    """`exact(inputs, constants)` for fewer keys than `exact_below`, else `linear`.

    Args:
        exact_below: int.
        exact, linear: functions of the nests that follow, with outputs alike.
        inputs: list of query, key, and further tensors; keys are `(B, S, heads, dim)`.
            If S is known only when a graph runs, that is when the choice is made.
        constants: nest of tensors, to which no gradient flows, and of other things.
    """
    is_short = size(inputs[1], 1) < exact_below
    if isinstance(is_short, bool):
        return (exact if is_short else linear)(inputs, constants)

    # The backward pass computes its branch again: tensors of unknown shape that go from
    # a branch to its gradient are what XLA cannot compile. And a branch takes copies:
    # under several tapes its gradient must hold tensors of the branch only.
    @tf.custom_gradient
    def choose(*inputs):
        def gradient(doutput):
            def pull(function):
                copies = _copies(list(inputs))
                with tf.GradientTape() as tape:
                    tape.watch(copies)
                    output = function(copies, _copies(constants))
                return tape.gradient(
                    output,
                    copies,
                    tf.identity(doutput),
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )

            return tf.cond(is_short, lambda: pull(exact), lambda: pull(linear))

        def push(function):
            return function(_copies(list(inputs)), _copies(constants))

        return tf.cond(is_short, lambda: push(exact), lambda: push(linear)), gradient

    return choose(*inputs)


def _copies(nest):
    return tf.nest.map_structure(
        lambda x: tf.identity(x) if tf.is_tensor(x) else x, nest
    )
