"""Draws of tokens from logits."""

import random
import typing

import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments

# The smallest float32 that hardware does not take for 0, and the largest.
_SMALLEST = float(np.finfo("float32").tiny)
_LARGEST = float(np.finfo("float32").max)


class Sampling(typing.NamedTuple):
    """Options of `draw`: scalar tensors, `None` for what it is to leave out.

    Without a temperature it takes the likeliest token. `top_k` is an int.
    """

    seed: tf.Tensor
    temperature: tf.Tensor | None
    top_k: int | None
    top_p: tf.Tensor | None
    min_p: tf.Tensor | None
    repetition_penalty: tf.Tensor | None

    @property
    def kind(self):
        """Key of a compiled `draw`: equal for equal graphs."""
        return self.top_k, *(option is None for option in self)


def check_options(seed, temperature, top_k, top_p, min_p, repetition_penalty):
    """The arguments of `generate` as a `Sampling`, if all is well with them."""
    seed = arguments.seed(seed)
    if seed is None:
        seed = random.randrange(2**31 - 1)
    temperature = _checked_temperature(temperature)
    top_k = arguments.positive_int("top_k", top_k, default=None)
    top_p, min_p = _checked_share("top_p", top_p), _checked_share("min_p", min_p)
    penalty = _checked_penalty(repetition_penalty)

    def scalar(value, unless=None):
        return None if value == unless else tf.constant(value, tf.float32)

    return Sampling(
        tf.constant(seed % (2**31 - 1), tf.int32),
        scalar(temperature, unless=0),
        top_k,
        scalar(top_p),
        scalar(min_p),
        scalar(penalty, unless=1),
    )


def draw(sampling, logits, seen, step):
    """Draws a token for each row of logits.

    Args:
        sampling: `Sampling`.
        logits: tensor of shape `(B, V)`; -inf is a token that is never drawn.
        seen: bool tensor of shape `(B, V)`, the tokens that came before; read where
            there is a `repetition_penalty`.
        step: int32 tensor, of which each draw of a sequence has another.

    Returns:
        `(tokens, finite)`: int32 tensor `(B,)`, and bool tensor `(B,)`, whether a token
        could be drawn from that row.
    """
    if logits.dtype.size < 4:  # too coarse for small temperatures
        logits = tf.cast(logits, tf.float32)
    if sampling.repetition_penalty is not None:
        logits = _penalized(logits, seen, sampling.repetition_penalty)
    # relative to the largest, which no temperature then makes infinite
    relative = logits - tf.reduce_max(logits, -1, keepdims=True)
    # NaN also where that is infinite; -inf elsewhere is a token never to be drawn
    invalid = tf.math.is_nan(relative)
    finite = ~tf.reduce_any(invalid, -1)
    if sampling.temperature is None:
        return tf.argmax(logits, -1, output_type=tf.int32), finite
    # numbers, as the model must be able to read what is drawn here
    logits = tf.where(invalid, tf.zeros_like(logits), relative)
    logits /= tf.cast(sampling.temperature, logits.dtype)
    seeds = tf.stack([sampling.seed, step])
    if sampling.top_k is None and sampling.top_p is None:
        logits = _of_min_p(logits, sampling.min_p)
        return _categorical(logits, seeds), finite
    size = logits.shape[-1]
    count = size if sampling.top_k is None else min(sampling.top_k, size)
    logits, ids = tf.math.top_k(logits, count)  # in descending order
    if sampling.top_p is not None:
        before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
        reached = before >= tf.cast(sampling.top_p, logits.dtype)
        logits = _without(reached, logits)
    logits = _of_min_p(logits, sampling.min_p)
    rank = _categorical(logits, seeds)
    return tf.gather(ids, rank, batch_dims=1), finite


def _penalized(logits, seen, penalty):
    """Makes seen tokens less likely, whatever the sign of their logits."""
    penalty = tf.cast(penalty, logits.dtype)
    less = tf.where(logits > 0, logits / penalty, logits * penalty)
    return tf.where(seen, less, logits)


def _of_min_p(logits, min_p):
    """Leaves tokens that are at least `min_p` times as likely as the likeliest.

    The logits are relative to the largest.
    """
    if min_p is None:
        return logits
    return _without(logits < tf.math.log(tf.cast(min_p, logits.dtype)), logits)


def _without(never, logits):
    return tf.where(never, tf.constant(float("-inf"), logits.dtype), logits)


def _categorical(logits, seeds):
    return tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)[:, 0]


def _checked_temperature(temperature):
    value = _as_float(temperature)
    if value is None or not (value == 0 or _SMALLEST <= value <= _LARGEST):
        raise ValueError(
            "temperature must be 0, for the likeliest token, or a positive float that "
            f"float32 can hold, {_SMALLEST:.2g} to {_LARGEST:.2g}. Received: "
            f"temperature={temperature!r}"
        )
    return value


def _checked_share(name, share):
    value = _as_float(share)
    if share is not None and (value is None or not _SMALLEST <= value <= 1):
        raise ValueError(
            f"{name} must be None or a float in the range (0, 1] that float32 can "
            f"hold, at least {_SMALLEST:.2g}. Received: {name}={share!r}"
        )
    return value


def _checked_penalty(penalty):
    value = _as_float(penalty)
    if value is None or not _SMALLEST <= value <= _LARGEST:
        raise ValueError(
            "repetition_penalty must be a positive float that float32 can hold, "
            f"{_SMALLEST:.2g} to {_LARGEST:.2g}; 1 changes nothing. Received: "
            f"repetition_penalty={penalty!r}"
        )
    return value


def _as_float(value):
    """A number or scalar tensor as a float, other things as `None`."""
    try:
        return None if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
