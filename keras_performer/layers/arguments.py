"""Checks of constructor arguments, and types of those that Keras understands."""

import difflib
import inspect
import math
import typing
from numbers import Integral, Real

import keras
import numpy as np
import tensorflow as tf

from keras_performer.ops.tensors import TensorLike


def among(value, choices):
    """True if `value` is one of `choices`; an array never is."""
    return not getattr(value, "ndim", 0) and value in choices


def without_array(value):
    """An array as a float, or as lists of floats; all else as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def checked(name, value, is_right, wanted):
    """The value of an argument, or a `ValueError` that says what is wanted."""
    if not is_right:
        raise ValueError(f"{name} must be {wanted}. Received: {name}={value!r}")
    return value


def _is_int(value):
    return isinstance(value, Integral) and not isinstance(value, bool)


def positive_int(name, value, default=..., auto=False):
    """`value` if it is a positive int, or with `auto` also "auto".

    `None` becomes `default`, if there is one.
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
    *names, last = (f'"{choice}"' for choice in choices)
    is_right = isinstance(value, str) and value in choices
    return checked(name, value, is_right, f"{', '.join(names)} or {last}")


def count(name, value, or_none=False):
    """An int of 0 or more; or also `None`."""
    if or_none and value is None:
        return None
    is_right = _is_int(value) and 0 <= value < 2**31
    wanted = f"an int, 0 or more and below 2**31{' or None' if or_none else ''}"
    return int(checked(name, value, is_right, wanted))


def boolean(name, value):
    return bool(checked(name, value, among(value, (True, False)), "True or False"))


def seed(value):
    """`None`, or a seed as an int."""
    checked("seed", value, value is None or _is_int(value), "an int or None")
    return None if value is None else int(value)


def rate(name, value):
    is_right = isinstance(value, Real) and 0 <= value < 1
    return float(checked(name, value, is_right, "a float in the range [0, 1)"))


def is_finite(value):
    """True for a finite number, which a bool is not."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def nonnegative(name, value, zero=True):
    """A finite float of 0 or more; without `zero`, of more."""
    is_right = is_finite(value) and value >= 0 and bool(value or zero)
    wanted = "0 or a positive float" if zero else "a positive float"
    return float(checked(name, value, is_right, wanted))


def sizes(name, value):
    """`None`, or a positive int or a sequence of such as a tuple."""
    if value is None:
        return None
    values = (value,) if isinstance(value, Integral) else value
    are_ints = isinstance(values, (list, tuple)) and all(map(_is_int, values))
    checked(name, value, are_ints, "an int or a tuple of ints")
    are_right = len(values) > 0 and min(values) > 0
    checked(name, value, are_right, "a positive int or a tuple of such")
    return tuple(int(v) for v in values)


def jit_compile(value):
    is_right = among(value, (True, False, "auto"))
    return checked("jit_compile", value, is_right, 'True, False or "auto"')


def recompute(value, causal):
    """Part that a model computes again when it trains: `None`, "block" or "network"."""
    is_right = among(value, (None, "block", "network"))
    checked("recompute", value, is_right, 'None, "block" or "network"')
    if value == "network" and not causal:
        raise ValueError(
            'recompute="network" needs causal=True: chunks hand a state on to later '
            'ones. Use recompute="block". Received: causal=False'
        )
    return value


def grid_shape(position_shape, max_length):
    """The axes that `max_length` positions run through; `None` without an end."""
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
    """The size of one of `num_heads` heads that share `hidden_dim`."""
    if hidden_dim % num_heads:
        raise ValueError(
            "num_heads must divide hidden_dim. Received: "
            f"num_heads={num_heads}, hidden_dim={hidden_dim}"
        )
    return hidden_dim // num_heads


# Arguments that are no more, or that Keras' attention has: the values that ask for
# nothing, and what to do instead of others.
REMOVED = {
    "exact_below": (
        [None],
        "where inputs are short, make the layer or model with exact attention, as "
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
        "it is a way to compute the attention of Keras' own layer. Leave it out, or "
        "use keras.layers.MultiHeadAttention",
    ),
    "use_gate": (
        [False],
        "multiply by a gate after the layer, or use keras.layers.MultiHeadAttention",
    ),
}


def without_removed(owner, options):
    """Options of a class without those of `REMOVED` that ask for nothing."""
    # also those that a subclass passes on as **kwargs
    inits = [x.__init__ for x in owner.__mro__ if "__init__" in vars(x)]
    own = {name for init in inits for name in inspect.signature(init).parameters}
    removed = REMOVED.keys() & options.keys() - own
    for name in removed:
        if not among(options[name], REMOVED[name][0]):
            raise unknown(owner, name, options[name])
    return {x: value for x, value in options.items() if x not in removed}


def unknown(owner, name, value, known=()):
    """The error of a keyword argument that a class or function does not have.

    `known` are names that it takes beside those of its signature.
    """
    if name in REMOVED:
        return ValueError(
            f"{owner.__name__} has no argument {name}: {REMOVED[name][1]}. Received: "
            f"{name}={value!r}"
        )
    own = inspect.signature(owner).parameters.values()
    known = {p.name for p in own if p.kind is not p.VAR_KEYWORD}.union(known)
    nearest = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.0)[0]
    return ValueError(
        f"{owner.__name__} has no argument {name}: did you mean {nearest}? Received: "
        f"{name}={value!r}"
    )


# What `keras.layers.Layer` takes, in old ways too.
OF_KERAS = {*inspect.signature(keras.layers.Layer.__init__).parameters}
OF_KERAS = OF_KERAS - {"self", "kwargs"} | {"input_shape", "input_dim"}


def split(options):
    """Keyword arguments in two dicts: others, and those of Keras' base class."""
    others = {x: value for x, value in options.items() if x not in OF_KERAS}
    return others, {x: value for x, value in options.items() if x in OF_KERAS}


def of_keras(layer, options):
    """Arguments of a layer for Keras' base class, with `autocast=False`."""
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
            'dtype must be one of floats, such as "float32" or "mixed_bfloat16": '
            "attention computes with no others. Received: "
            f"dtype={layer.dtype_policy.name!r}"
        )


def batch_size(value):
    """An int of 0 or more, or a scalar tensor."""
    if tf.is_tensor(value) and value.dtype.is_integer and not len(value.shape):
        return value
    return count("batch_size", value)


def check_depth(states, num_layers):
    if len(states) != num_layers:
        raise ValueError(
            "state must be what get_initial_state or an earlier call of a model of as "
            f"many layers gave, {num_layers}. Received: the states of "
            f"{len(states)} layers"
        )


def check_embedded(x, hidden_dim):
    if x.shape[-1] != hidden_dim:
        raise ValueError(
            f"embedding must give vectors of hidden_dim={hidden_dim}. "
            f"Received: a tensor of shape {tuple(x.shape)}"
        )


def check_causal(layer, causal):
    if causal and not layer.supports_causal:
        raise ValueError(
            f"{type(layer).__name__} cannot hide later tokens: make it with "
            "causal=False, and call it without use_causal_mask. Received: causal=True"
        )


def up_to_max_length(layer, length):
    """`length`, checked: an int now, a scalar tensor when a graph runs."""
    name = type(layer).__name__
    message = (
        f"{name} ends at max_length: make it with the max_length of the longest "
        "sequence, or cut this one. Received: a sequence longer than max_length="
        f"{layer.max_length}"
    )
    if isinstance(length, int):
        if length > layer.max_length:
            raise ValueError(f"{message}, of {length} tokens")
        return length
    shorter = tf.debugging.assert_less_equal(length, layer.max_length, message)
    with tf.control_dependencies([shorter]):
        # XLA leaves assertions out; it refuses what is smaller than nothing, by name
        name = f"make_{name}_with_a_max_length_above_{layer.max_length}"
        return layer.max_length - tf.size(tf.fill([layer.max_length - length], 0, name))


# -- Signatures of classes that hand arguments on.


class JoinsSignatures:
    """Mixin for classes whose `__init__` may take `*args` and `**kwargs` for its base.

    The signature that Python shows then names the arguments of both. What stands behind
    an argument of its own in the base is given by name.
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
    """Makes Python show a class with a list of `inspect.Parameter`."""
    setattr(cls, "__signature__", _OfClass(inspect.Signature(parameters)))  # noqa: B010


class _OfClass:
    """Attribute of a class that its instances, which have a call, do not have."""

    def __init__(self, value):
        self._value = value

    def __get__(self, instance, owner):
        if instance is not None:
            raise AttributeError("__signature__")
        return self._value


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


# -- Types of the arguments that layers share with Keras'.


# The inputs of a call: tensors, or what stands for them while a model is made.
LayerInput: typing.TypeAlias = TensorLike | keras.KerasTensor

# Whatever `keras.initializers.get` and its like take; a dict is a config.
Initializer: typing.TypeAlias = str | dict | keras.initializers.Initializer
Regularizer: typing.TypeAlias = str | dict | keras.regularizers.Regularizer | None
Constraint: typing.TypeAlias = str | dict | keras.constraints.Constraint | None
