"""Finds the layer whose outputs change although they should not."""

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
    """Returns a `Call` of each layer in the order in which calls end, the model's last.

    `change` gets a layer, its first argument and its outputs, and returns the outputs
    to use instead.
    """
    calls = []

    def note(layer, arguments, outputs):
        if change is not None and arguments:
            outputs = change(layer, next(iter(arguments.values())), outputs)
        nests = dict(arguments), outputs
        arrays = (
            [*map(np.asarray, filter(tf.is_tensor, keras.tree.flatten(x)))]
            for x in nests
        )
        calls.append(Call(layer, *arrays))
        return outputs

    watch(model, inputs, note)
    return calls


def layer_at_fault(calls, others, kept, tolerance, whole=True):
    """Finds the layer at fault if outputs of a model differ that should be equal.

    `calls` and `others` are from `calls_of`, for two calls of the model. `kept` is a
    dict of shapes `(B, T)` to bool arrays, true for tokens whose outputs should be the
    same; with `whole`, outputs without tokens should be, too. Returns the largest wrong
    difference, and the path and class of the layer; or `None` if outputs are equal.
    """
    *inner, model = zip(calls, others)
    change = _change(model, kept, tolerance, whole)
    if not change:
        return None
    # layers that combine all tokens are blamed only if no other layer is to blame
    blamed = (
        call.layer
        for judge_whole in dict.fromkeys((whole, True))
        for call, other in inner
        if _same_inputs(call, other, kept, tolerance)
        and _change((call, other), kept, tolerance, judge_whole)
    )
    layer = next(blamed, model[0].layer)
    return change, f"{layer.path or layer.name} ({type(layer).__name__})"


def tokens_change(call, other, shape):
    """Returns `True` if any output of shape `(B, T, ...)` differs."""
    pairs = zip(call.outputs, other.outputs)
    return any(x.shape[:2] == shape and not np.array_equal(x, y) for x, y in pairs)


def _change(pair, kept, tolerance, whole):
    """Returns the largest wrong difference of outputs; 0.0 within the tolerance."""
    differences = [0.0]
    for x, y in zip(*(call.outputs for call in pair)):
        mask = kept.get(x.shape[:2])
        has_tokens = any(length in x.shape[1:] for _, length in kept)
        if mask is not None:
            differences.append(_difference(x[mask], y[mask], tolerance))
        elif whole and not has_tokens:
            differences.append(_difference(x, y, tolerance))
    return max(differences)


def _same_inputs(call, other, kept, tolerance):
    pairs = (
        (x, y, kept.get(x.shape[:2], ...)) for x, y in zip(call.inputs, other.inputs)
    )
    return not any(_difference(x[at], y[at], tolerance) for x, y, at in pairs)


def _difference(x, y, tolerance):
    """Returns the largest difference; 0.0 if it is small relative to the median.

    The largest number cannot replace the median: it may belong to a mask, such as -1e9.
    The difference is infinite if only one number is nan, or if two texts differ.
    """
    if x.dtype.kind in "SUO":
        return float("inf") if (x != y).any() else 0.0
    x, y = x.astype(np.float64), y.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(x - y))
    difference = np.nan_to_num(difference, nan=np.inf, posinf=np.inf)
    largest = difference.max(initial=0.0)
    sizes = np.abs(x[np.isfinite(x) & (x != 0)])
    typical = np.median(sizes) if sizes.size else 0.0
    return largest if largest > tolerance * typical else 0.0
