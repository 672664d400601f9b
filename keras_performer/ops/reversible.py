"""Residual layers whose inputs are computed from their outputs."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_performer.ops.gradients import custom_gradient


def reversible_chain(
    functions: Sequence[Callable[[Any, Any, Any], tuple[Any, Any]]],
    first: tf.Tensor,
    second: tf.Tensor,
    params: Sequence[Any],
    state: Any = (),
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Adds functions of one stream to the other, by turns, and keeps only the ends.

    Each function takes `(a, b)` to `(b, a + f(b))`. With F and G in turn that is

        y1 = x1 + F(x2),  y2 = x2 + G(y1)

    The gradient goes back from the outputs, as `a` is what is left of `a + f(b)`
    without `f(b)`: its memory does not grow with the number of functions, but for
    params and states. What it computes again differs from what was by the rounding of
    the streams; in float64 that is nothing to functions of float32.

    Args:
        functions: list of functions that take `(x, params, state)`, with x of the shape
            and dtype of the streams, and return a tensor like x and the next state.
            They must be pure, and read no variables.
        first, second: tensors of one shape and dtype, x1 and x2.
        params: list of nests of tensors, for each function one.
        state: nest of integer tensors that goes from function to function, such as
            seeds.

    Returns:
        `(first, second, state)` after the last function.

    Reference:
        Gomez et al. 2017, RevNet, arXiv 1707.04585; Kitaev et al. 2020, Reformer, arXiv
        2001.04451, equations 7 and 8.

    Example:

    >>> def double(x, scale, state):
    ...     return scale * x, state
    >>> first, second, _ = reversible_chain(
    ...     [double, double], tf.constant(1.0), tf.constant(2.0), [2.0, 2.0])
    >>> float(first), float(second)
    (5.0, 12.0)
    """
    params = [tf.nest.map_structure(tf.convert_to_tensor, given) for given in params]
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    if len(functions) != len(params):
        raise ValueError(
            "params must have an entry for each function. Received: "
            f"{len(functions)} functions and {len(params)} params"
        )

    @custom_gradient
    def chain(first, second, *flat):
        given = tf.nest.pack_sequence_as(params, flat)
        # a tape around this is to keep nothing of what happens here
        a, b, fixed = tf.nest.map_structure(tf.stop_gradient, (first, second, given))
        carried, states = state, []
        for function, own in zip(functions, fixed):
            states.append(carried)
            change, carried = function(b, own, carried)
            a, b = b, a + change

        def gradient(da, db, *_):
            ends, dparams, gradients = (a, b, da, db), [], []
            for step in zip(reversed(functions), reversed(given), reversed(states)):
                *ends, dparams = _backward(*step, *ends, dparams)
                gradients = dparams + gradients
            return [*ends[2:], *gradients]

        return (a, b, *tf.nest.flatten(carried)), gradient

    first, second, *carried = chain(first, second, *tf.nest.flatten(params))
    return first, second, tf.nest.pack_sequence_as(state, carried)


def _backward(function, params, state, b, total, db, dtotal, earlier):
    """From `(b, a + f(b))` and its gradients to `(a, b)` and those.

    Args:
        function, params, state: as in `reversible_chain`, of this function.
        b, total, db, dtotal: tensors.
        earlier: the `dparams` of the function after, which are to be there first.

    Returns:
        `(a, b, da, db, dparams)`, the last a flat list with `None` for integers.
    """
    b, flat = _after([dtotal, *earlier], b), tf.nest.flatten(params)
    floats = [x for x in flat if x.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([b, floats])
        change, _ = function(b, params, state)
    dx, *found = tape.gradient(
        change,
        [b, *floats],
        output_gradients=dtotal,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    found = iter(found)
    dparams = [next(found) if x.dtype.is_floating else None for x in flat]
    return total - change, b, dtotal, db + dx, dparams


def _after(earlier, x):
    """x, which cannot be there before `earlier` are, tensors or `None`.

    Without it a graph would compute again at once, and hold all of it until gradients
    come; and XLA would hold what it has, in the place of computing it again, or put off
    gradients of params, and hold what they are made of.
    """
    for one in earlier:
        if one is not None:
            # of all of it, as XLA computes a part by itself; 0 or NaN it cannot know
            total = tf.reduce_sum(one)
            nothing = tf.where(total == total, tf.zeros_like(total), total)
            x += tf.cast(nothing, x.dtype)
    return x
