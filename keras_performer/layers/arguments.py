"""Checks of constructor arguments, and types of arguments that Keras also has."""

import difflib
import inspect
import math
import typing
from numbers import Integral, Real

import keras
import numpy as np
import tensorflow as tf

from keras_performer.ops.shapes import TensorLike


def among(value, choices):
    """Returns True if `value` is one of `choices`; an array or tensor never is."""
    if tf.is_tensor(value) or getattr(value, "ndim", 0):
        return False
    return value in choices


def without_array(value):
    """Returns an array as a float or as lists of floats, other values unchanged."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def checked(name, value, is_right, wanted):
    """Returns the value of an argument, or raises an error that says what is wanted."""
    if not is_right:
        raise ValueError(f"{name} must be {wanted}. Received: {name}={value!r}")
    return value


def _is_int(value):
    return isinstance(value, Integral) and not isinstance(value, bool)


def positive_int(name, value, default=..., auto=False):
    """Returns `value` if it is a positive int, or with `auto` also "auto".

    `None` becomes `default`, if there is a default.
    """
    if value is None and default is not ...:
        return default
    if auto and isinstance(value, str) and value == "auto":
        return value
    or_none = "" if default is ... else " or None"
    or_none = f', "auto"{or_none}' if auto else or_none
    below = " below 2**31" if _is_int(value) and value > 0 else ""
    is_right = _is_int(value) and 0 < value < 2**31
    return int(checked(name, value, is_right, f"a positive int{below}{or_none}"))


def one_of(name, value, choices):
    *names, last = (f'"{x}"' if isinstance(x, str) else str(x) for x in choices)
    return checked(name, value, among(value, choices), f"{', '.join(names)} or {last}")


def count(name, value, or_none=False):
    """Returns `value` if it is an int of 0 or more, or with `or_none` also `None`."""
    if or_none and value is None:
        return None
    is_right = _is_int(value) and 0 <= value < 2**31
    wanted = f"an int, 0 or more and below 2**31{' or None' if or_none else ''}"
    return int(checked(name, value, is_right, wanted))


def boolean(name, value):
    return bool(one_of(name, value, (True, False)))


def seed(value):
    """Returns a seed as an int, or `None`."""
    checked("seed", value, value is None or _is_int(value), "an int or None")
    return None if value is None else int(value)


def rate(name, value):
    is_right = isinstance(value, Real) and 0 <= value < 1
    return float(checked(name, value, is_right, "a float in the range [0, 1)"))


def is_finite(value):
    """Returns True for a finite number; a bool is no number here."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def floats(name, value, lengths, wanted):
    """Returns finite floats as a tuple, if their number is one of `lengths`."""
    found = without_array(value)
    is_right = isinstance(found, (list, tuple)) and len(found) in lengths
    checked(name, value, is_right and all(map(is_finite, found)), wanted)
    return tuple(map(float, found))


def nonnegative(name, value, zero=True):
    """Returns a finite float of 0 or more, or above 0 with `zero=False`."""
    is_right = is_finite(value) and value >= 0 and bool(value or zero)
    wanted = "0 or a positive float" if zero else "a positive float"
    return float(checked(name, value, is_right, wanted))


def sizes(name, value):
    """Returns one or several positive ints as a tuple, or `None`."""
    if value is None:
        return None
    values = (value,) if isinstance(value, Integral) else value
    are_ints = isinstance(values, (list, tuple)) and all(map(_is_int, values))
    checked(name, value, are_ints, "an int or a tuple of ints")
    are_right = len(values) > 0 and min(values) > 0
    checked(name, value, are_right, "a positive int or a tuple of positive ints")
    return tuple(int(v) for v in values)


def jit_compile(value):
    return one_of("jit_compile", value, (True, False, "auto"))


def recompute(value, causal):
    """Returns the argument `recompute` if it is `None`, "block" or "network"."""
    one_of("recompute", value, (None, "block", "network"))
    if value == "network" and not causal:
        raise ValueError(
            'recompute="network" needs causal=True, because chunks pass a state to '
            'later chunks. Use recompute="block". Received: causal=False'
        )
    return value


def grid_shape(position_shape, max_length):
    """Returns the grid shape of `max_length` positions, or `None` if unlimited."""
    shape = sizes("position_shape", position_shape)
    if shape is None:
        return None if max_length is None else (max_length,)
    if math.prod(shape) != max_length:
        raise ValueError(
            "The product of position_shape must be max_length. Received: "
            f"position_shape={shape}, max_length={max_length}"
        )
    return shape


def head_dim(hidden_dim, num_heads):
    """Returns the size of each of the `num_heads` heads that share `hidden_dim`."""
    if hidden_dim % num_heads:
        raise ValueError(
            "num_heads must divide hidden_dim. Received: "
            f"num_heads={num_heads}, hidden_dim={hidden_dim}"
        )
    return hidden_dim // num_heads


# Names of other libraries, for which a similar name would be the wrong one.
ELSEWHERE = {
    "num_kv_heads": ["num_key_value_heads"],
    "window_size": ["exact_window", "sliding_window"],
}
# Removed arguments, and arguments of Keras' attention: values that ask for nothing and
# are accepted, and advice in the error for other values.
REMOVED = {
    "exact_below": (
        [None],
        "for short inputs, make the layer or model with exact attention, that is, "
        'ExactAttention or attention="exact": it has the same dense weights',
    ),
    "attention_axes": (
        [None, 1, (1,), [1]],
        "attention runs over axis 1 of inputs (batch, length, features). Move other "
        "axes there, or into the batch, with keras.ops.transpose and reshape",
    ),
    "sliding_window": (
        [None],
        "use LocalAttention for local attention, or "
        "PerformerAttention(exact_window=...) for exact near keys",
    ),
    "flash_attention": (
        [None, False],
        "it selects how Keras' own layer computes attention. Leave it out, or use "
        "keras.layers.MultiHeadAttention",
    ),
    "use_gate": (
        [False],
        "multiply by a gate after the layer, or use keras.layers.MultiHeadAttention",
    ),
}


def without_removed(owner, options):
    """Returns options without the arguments of `REMOVED` whose values ask for nothing.

    Any other value of these arguments raises an error.
    """
    # includes arguments that a subclass passes on as **kwargs
    inits = [x.__init__ for x in owner.__mro__ if "__init__" in vars(x)]
    own = {name for init in inits for name in inspect.signature(init).parameters}
    removed = REMOVED.keys() & options.keys() - own
    for name in removed:
        if not among(options[name], REMOVED[name][0]):
            raise unknown(owner, name, options[name])
    return {x: value for x, value in options.items() if x not in removed}


def unknown(owner, name, value, known=()):
    """Returns the error for a keyword argument that a class or function does not have.

    `known` are names that the owner takes in addition to its signature.
    """
    title = owner.__name__
    if name in REMOVED:
        return ValueError(
            f"{title} has no argument {name}: {REMOVED[name][1]}. Received: "
            f"{name}={value!r}"
        )
    own = inspect.signature(owner).parameters.values()
    known = {p.name for p in own if p.kind is not p.VAR_KEYWORD}.union(known)
    nearest = [ours for ours in ELSEWHERE.get(name, []) if ours in known]
    nearest += difflib.get_close_matches(name, sorted(known), 1, cutoff=0.55)
    advice = f"did you mean {nearest[0]}?" if nearest else f"see help({title})."
    return ValueError(
        f"{title} has no argument {name}: {advice} Received: {name}={value!r}"
    )


# Arguments of `keras.layers.Layer`, including old ones.
OF_KERAS = {*inspect.signature(keras.layers.Layer.__init__).parameters}
OF_KERAS = OF_KERAS - {"self", "kwargs"} | {"input_shape", "input_dim"}


def split(options):
    """Splits keyword arguments into two dicts: others, and those for Keras' `Layer`."""
    others = {x: value for x, value in options.items() if x not in OF_KERAS}
    return others, {x: value for x, value in options.items() if x in OF_KERAS}


def of_keras(layer, options):
    """Returns a layer's arguments for Keras' base class, with `autocast=False`."""
    options = without_removed(type(layer), options)
    for name in options.keys() - OF_KERAS:
        raise unknown(type(layer), name, options[name], OF_KERAS)
    if options.get("autocast"):
        raise ValueError(
            "autocast must be False: Keras would cast the state, which stays in "
            "float32, to the compute dtype. Leave it out. Received: autocast="
            f"{options['autocast']!r}"
        )
    return {**options, "autocast": False}


def check_dtype(layer):
    if not tf.as_dtype(layer.compute_dtype).is_floating:
        raise ValueError(
            'dtype must be a float dtype, such as "float32" or "mixed_bfloat16": '
            "attention computes only with floats. Received: "
            f"dtype={layer.dtype_policy.name!r}"
        )


def batch_size(value):
    """Returns a batch size if it is an int of 0 or more, or a scalar tensor."""
    if tf.is_tensor(value) and value.dtype.is_integer and not len(value.shape):
        return value
    return count("batch_size", value)


def check_depth(states, num_layers):
    if len(states) != num_layers:
        raise ValueError(
            "state must come from get_initial_state or an earlier call of a model with "
            f"the same number of layers, {num_layers}. Received: the states of "
            f"{len(states)} layers"
        )


def check_embedded(x, hidden_dim):
    if x.shape[-1] != hidden_dim:
        raise ValueError(
            f"embedding must return vectors of size hidden_dim={hidden_dim}. "
            f"Received: a tensor of shape {tuple(x.shape)}"
        )


def check_causal(layer, causal):
    if causal and not layer.supports_causal:
        raise ValueError(
            f"{type(layer).__name__} cannot hide later tokens: make it with "
            "causal=False, and call it without use_causal_mask. Received: causal=True"
        )


def up_to_max_length(layer, length):
    """Returns `length`, checked now if it is an int, or in the graph if a tensor."""
    name = type(layer).__name__
    message = (
        f"{name} takes at most max_length tokens: make it with the max_length of the "
        "longest sequence, or cut this one. Received: a sequence longer than "
        f"max_length={layer.max_length}"
    )
    if isinstance(length, int):
        if length > layer.max_length:
            raise ValueError(f"{message}, of {length} tokens")
        return length
    shorter = tf.debugging.assert_less_equal(length, layer.max_length, message)
    with tf.control_dependencies([shorter]):
        # XLA leaves assertions out, but its error for a negative size names the op.
        name = f"make_{name}_with_a_max_length_above_{layer.max_length}"
        return layer.max_length - tf.size(tf.fill([layer.max_length - length], 0, name))


# -- Signatures of classes that pass arguments on.


class JoinsSignatures:
    """Mixin for classes whose `__init__` may take `*args` and `**kwargs` for its base.

    The signature that Python shows then has the arguments of both. If the class defines
    an argument of its base again, all arguments after it in the base are keyword-only.
    """

    def __init_subclass__(cls, **kwargs: typing.Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            _, *own = inspect.signature(cls.__init__).parameters.values()
            if any(p.kind is p.VAR_POSITIONAL for p in own):
                base = next(x for x in cls.__mro__[1:] if "__init__" in vars(x))
                own = _joined(inspect.signature(base), own)
            show_signature(cls, own)


def show_signature(cls, parameters):
    """Sets the signature that Python shows for a class, a list of parameters."""
    cls.__signature__ = _OfClass(inspect.Signature(parameters))


class _OfClass:
    """Class attribute that is `None` for instances, which have a `__call__`."""

    def __init__(self, value):
        self._value = value

    def __get__(self, instance, owner):
        return self._value if instance is None else None


def _joined(base, own):
    own = {p.name: p for p in own if p.kind is p.KEYWORD_ONLY}
    found, by_name = [], False
    for name, parameter in base.parameters.items():
        by_name = by_name or name in own
        if parameter.kind is parameter.VAR_KEYWORD:
            found += [*own.values(), parameter]
        elif name not in own:
            by_key = by_name and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            kind = parameter.KEYWORD_ONLY if by_key else parameter.kind
            found.append(parameter.replace(kind=kind))
    return found


# -- Types of arguments that Keras' layers also have.


# Inputs of a call: tensors, or symbolic tensors while a model is made.
LayerInput: typing.TypeAlias = TensorLike | keras.KerasTensor

# Arguments of `keras.initializers.get` and similar functions; a dict is a config.
Initializer: typing.TypeAlias = str | dict | keras.initializers.Initializer
Regularizer: typing.TypeAlias = str | dict | keras.regularizers.Regularizer | None
Constraint: typing.TypeAlias = str | dict | keras.constraints.Constraint | None
