"""Compiled loop that reads a token and samples the next, for many sequences at once."""

import functools
import typing
import weakref

import tensorflow as tf

from keras_performer.layers.keras_privates import all_layers
from keras_performer.models import sampling
from keras_performer.models.performer_lm import PerformerLM

# Compiled functions of each model, so that generating again does not trace again.
_functions: weakref.WeakKeyDictionary[PerformerLM, tuple] = weakref.WeakKeyDictionary()


class Carry(typing.NamedTuple):
    """Loop variables of generation, with one row for each sequence.

    `seen`, the tokens of each sequence so far, bool `(B, V)`, is `()` without a
    repetition penalty; `ended`, bool `(B,)`, is `()` without stop tokens.
    """

    token: typing.Any  # int32 (B, 1), the last token, not yet read
    state: typing.Any
    seen: typing.Any
    ended: typing.Any


def compiled(model, options):
    """Returns compiled `read` and `extend` for this model and kind of `Sampling`."""
    # LoRA and quantization change weights or dtypes of a model
    made_from = (
        [id(weight) for weight in model.weights],
        [layer.dtype_policy.name for layer in all_layers(model)],
    )
    if model not in _functions or _functions[model][0] != made_from:
        # keeps the weights, so that no later weight gets the id of one of them
        _functions[model] = made_from, model.weights, {}
    functions = _functions[model][-1]

    def function(body, kind):
        if (body, kind) not in functions:
            # A proxy, because a function that holds the model keeps it alive for ever.
            # Partials, because TensorFlow takes several closures of one function for
            # one function that is compiled again and again, and warns.
            functions[body, kind] = tf.function(
                functools.partial(body, weakref.proxy(model)), reduce_retracing=True
            )
        return functions[body, kind]

    return function(read, None), function(extend, options.kind)


def read(model, tokens, state):
    """Returns logits `(B, V)` of the token after tokens `(B, T)`, and the state."""
    outputs, state = model(tokens, state=state, return_state=True)
    return model.next_token_logits(outputs[:, -1]), state


def draw(options, logits, carry, step):
    """Samples the next token of each row, from what `read` returned.

    `carry` already has the state after the last token; `step` is the length of the
    shortest sequence so far. Returns the next `Carry`, and true if all rows could be
    sampled.
    """
    token, finite = sampling.draw(options, logits, carry.seen, step)
    seen, ended = carry.seen, carry.ended
    if options.repetition_penalty is not None:
        seen |= tf.one_hot(token, seen.shape[-1], True, False, dtype=tf.bool)
    if options.stop_tokens is not None:
        finite |= ended  # tokens after the end are not part of the sequence
        ended |= tf.reduce_any(token[:, tf.newaxis] == options.stop_tokens, -1)
    carry = Carry(token[:, tf.newaxis], carry.state, seen, ended)
    return carry, tf.reduce_all(finite)


def extend(model, options, carry, start, count):
    """Samples `count` tokens, each after reading the last; fewer if all rows end.

    Returns tokens `(tokens, B)`, the `Carry`, and true if all could be sampled.
    """

    def unfinished(i, carry, *_):
        if options.stop_tokens is None:
            return i < count
        return (i < count) & ~tf.reduce_all(carry.ended)

    def step(i, carry, all_finite, tokens):
        logits, state = read(model, carry.token, carry.state)
        carry = carry._replace(state=state)
        carry, finite = draw(options, logits, carry, start + i)
        tokens = tokens.write(i, carry.token[:, 0])
        return i + 1, carry, all_finite & finite, tokens

    tokens = tf.TensorArray(tf.int32, size=count, element_shape=carry.token.shape[:1])
    drawn, carry, finite, tokens = tf.while_loop(
        unfinished, step, (0, carry, True, tokens)
    )
    return tokens.stack()[:drawn], carry, finite
