"""Sampling of tokens from logits."""

import typing

import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.performer import seed_or_random

# The smallest float32 that hardware does not round to 0, and the largest float32.
_SMALLEST = float(np.finfo("float32").tiny)
_LARGEST = float(np.finfo("float32").max)


class Sampling(typing.NamedTuple):
    """Options of `generate`: scalar tensors, `None` for options without effect.

    Without a temperature, `draw` takes the likeliest token. `top_k` is an int.
    """

    seed: tf.Tensor
    temperature: tf.Tensor | None
    top_k: int | None
    top_p: tf.Tensor | None
    min_p: tf.Tensor | None
    repetition_penalty: tf.Tensor | None
    stop_tokens: tf.Tensor | None = None  # int32, a vector

    @property
    def kind(self):
        """Key of a compiled loop; equal graphs have equal keys."""
        return self.top_k, *(option is None for option in self)


def check_options(seed, temperature, top_k, top_p, min_p, repetition_penalty):
    """Checks sampling arguments of `generate`; returns them as a `Sampling`."""
    seed = seed_or_random(arguments.seed(seed))
    held = f"a positive float that float32 can hold, {_SMALLEST:.2g} to {_LARGEST:.2g}"
    wanted = f"0, for the likeliest token, or {held}"
    temperature = _checked("temperature", temperature, wanted, also=0)
    top_k = arguments.positive_int("top_k", top_k, default=None)
    wanted = "None or a float in the range (0, 1] that float32 can hold, at least "
    wanted += f"{_SMALLEST:.2g}"
    top_p, min_p = (
        None if share is None else _checked(name, share, wanted, most=1)
        for name, share in (("top_p", top_p), ("min_p", min_p))
    )
    wanted = f"{held}; 1 changes nothing"
    penalty = _checked("repetition_penalty", repetition_penalty, wanted)

    def scalar(value, unless=None):
        return None if value == unless else tf.constant(value, tf.float32)

    return Sampling(
        tf.constant(seed, tf.int32),
        scalar(temperature, unless=0),
        top_k,
        scalar(top_p),
        scalar(min_p),
        scalar(penalty, unless=1),
    )


def _checked(name, value, wanted, most=_LARGEST, also=None):
    """Returns a number or scalar tensor as a float; raises if it is out of range."""
    try:
        number = None if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not (number == also or _SMALLEST <= number <= most):
        raise ValueError(f"{name} must be {wanted}. Received: {name}={value!r}")
    return number


def draw(sampling, logits, seen, step):
    """Samples a token for each row of logits `(B, V)`; -inf is never sampled.

    `seen` marks the earlier tokens, bool `(B, V)`, if there is a `repetition_penalty`.
    `step` is an int32 scalar tensor, different for each token of a sequence. Returns
    tokens, int32 `(B,)`, and a bool `(B,)`, true if the row could be sampled.
    """
    if logits.dtype.size < 4:  # too coarse for small temperatures
        logits = tf.cast(logits, tf.float32)
    if sampling.repetition_penalty is not None:  # for logits of either sign
        penalty = tf.cast(sampling.repetition_penalty, logits.dtype)
        less = tf.where(logits > 0, logits / penalty, logits * penalty)
        logits = tf.where(seen, less, logits)
    # relative to the largest, so that no temperature makes the largest infinite
    relative = logits - tf.reduce_max(logits, -1, keepdims=True)
    # NaN also where the largest is infinite; other -inf are tokens never sampled
    invalid = tf.math.is_nan(relative)
    finite = ~tf.reduce_any(invalid, -1)
    if sampling.temperature is None:
        return tf.argmax(logits, -1, output_type=tf.int32), finite
    # without NaN, because the model must be able to read the sampled tokens
    logits = tf.where(invalid, tf.zeros_like(logits), relative)
    logits /= tf.cast(sampling.temperature, logits.dtype)
    never = tf.constant(float("-inf"), logits.dtype)
    ids = None
    if sampling.top_k is not None or sampling.top_p is not None:
        size = logits.shape[-1]
        count = size if sampling.top_k is None else min(sampling.top_k, size)
        logits, ids = tf.math.top_k(logits, count)  # in descending order
    if sampling.top_p is not None:
        before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
        reached = before >= tf.cast(sampling.top_p, logits.dtype)
        logits = tf.where(reached, never, logits)
    if sampling.min_p is not None:  # the likeliest has a logit of 0
        least = tf.math.log(tf.cast(sampling.min_p, logits.dtype))
        logits = tf.where(logits < least, never, logits)
    seeds = tf.stack([sampling.seed, step])
    drawn = tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)[:, 0]
    return drawn if ids is None else tf.gather(ids, drawn, batch_dims=1), finite
