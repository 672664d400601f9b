"""The choice between exact and linear attention by the length of the input."""

import tensorflow as tf

from keras_performer.ops.gradients import custom_gradient
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

    def either(run):
        return tf.cond(is_short, lambda: run(exact), lambda: run(linear))

    # The backward pass computes its branch again: tensors of unknown shape that go from
    # a branch to its gradient are what XLA cannot compile. And a branch takes copies:
    # under several tapes its gradient must hold tensors of the branch only.
    @custom_gradient
    def choose(*inputs):
        def backward(function, doutput):
            copies = _mapped(tf.identity, list(inputs))
            return tf.gradients(
                function(copies, _mapped(tf.identity, constants)),
                copies,
                tf.identity(doutput),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )

        def gradient(doutput):
            return either(lambda function: backward(function, doutput))

        # No tape records the choice forward, as the gradient needs nothing of it: under
        # two tapes TensorFlow would make derivatives of all in a branch, and theirs.
        given = _mapped(tf.stop_gradient, (list(inputs), constants))
        return either(lambda function: function(*given)), gradient

    return choose(*inputs)


def _mapped(function, nest):
    return tf.nest.map_structure(lambda x: function(x) if tf.is_tensor(x) else x, nest)
