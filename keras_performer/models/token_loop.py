"""The compiled loop: reads a token, draws the next, for many sequences at once."""

import functools
import typing
import weakref

import tensorflow as tf

from keras_performer.layers.keras_privates import all_layers
from keras_performer.models import sampling
from keras_performer.models.performer_lm import PerformerLM

# What is compiled for each model, so that generating again does not trace again.
_functions: weakref.WeakKeyDictionary[PerformerLM, tuple] = weakref.WeakKeyDictionary()


class Carry(typing.NamedTuple):
    """Loop variables of generation, a row for each sequence.

    `seen`, the tokens of each sequence so far, bool `(B, V)`, is `()` without a
    repetition penalty; `ended`, bool `(B,)`, is `()` without stop tokens.
    """

    token: typing.Any  # int32 (B, 1), the last one, not read yet
    state: typing.Any
    seen: typing.Any
    ended: typing.Any


def compiled(model, options, has_stops):
    """The functions `read` and `extend` for this model and this kind of `Sampling`."""
    # LoRA and quantization give a model other weights, or other dtypes
    made_from = (
        [id(weight) for weight in model.weights],
        [layer.dtype_policy.name for layer in all_layers(model)],
    )
    if model not in _functions or _functions[model][0] != made_from:
        # with the weights themselves, so that no later weight gets the id of one
        _functions[model] = made_from, model.weights, {}
    functions = _functions[model][-1]

    def function(body, kind):
        if (body, kind) not in functions:
            # a proxy, as a function that held the model would keep it alive for ever;
            # partials, as TensorFlow takes closures of one function for one that it
            # compiles again and again, and warns
            functions[body, kind] = tf.function(
                functools.partial(body, weakref.proxy(model)), reduce_retracing=True
            )
        return functions[body, kind]

    return function(read, None), function(extend, (options.kind, has_stops))


def read(model, tokens, state):
    """Logits `(B, V)` of the token after tokens `(B, T)`, and the state."""
    outputs, state = model(tokens, state=state, return_state=True)
    return model.next_token_logits(outputs[:, -1]), state


def draw(options, stops, logits, carry, step):
    """Draws the token after what was read; also returns if all logits allowed it.

    The `Carry` is that from before, with the state of now. `step` is the length of the
    sequence whose draw this is.
    """
    token, finite = sampling.draw(options, logits, carry.seen, step)
    seen, ended = carry.seen, carry.ended
    if options.repetition_penalty is not None:
        seen |= tf.one_hot(token, seen.shape[-1], True, False, dtype=tf.bool)
    if stops is not None:
        finite |= ended  # what follows is not part of the sequence
        ended |= tf.reduce_any(token[:, tf.newaxis] == stops, -1)
    carry = Carry(token[:, tf.newaxis], carry.state, seen, ended)
    return carry, tf.reduce_all(finite)


def extend(model, options, stops, carry, start, count):
    """Draws `count` tokens, each after reading the one before; fewer if all have ended.

    Returns:
        Tokens `(tokens, B)`, the `Carry`, and whether all could be drawn.
    """

    def unfinished(i, carry, *_):
        going_on = i < count
        return going_on if stops is None else going_on & ~tf.reduce_all(carry.ended)

    def step(i, carry, all_finite, tokens):
        logits, state = read(model, carry.token, carry.state)
        carry = carry._replace(state=state)
        carry, finite = draw(options, stops, logits, carry, start + i)
        tokens = tokens.write(i, carry.token[:, 0])
        return i + 1, carry, all_finite & finite, tokens

    tokens = tf.TensorArray(tf.int32, size=count, element_shape=carry.token.shape[:1])
    drawn, carry, finite, tokens = tf.while_loop(
        unfinished, step, (0, carry, True, tokens)
    )
    return tokens.stack()[:drawn], carry, finite
