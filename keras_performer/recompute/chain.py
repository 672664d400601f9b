"""Links, the parts of a model's chain, and the scan that runs some of them.

The body of a scan, which is run again for its gradient, reads no variables: they go
into the loop as tensors, and seeds come out of it (`stateless_calls.py`).
"""

import math
import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.blocks import block_sizes
from keras_performer.recompute.stateless_calls import (
    call_with_values,
    owned_by,
    split_variables,
    values_of,
)


class Link(typing.NamedTuple):
    """A part of a model.

    Its `step` is a function of a chunk of the stream, the state, the sides
    (`passes.Sides`) and what is `given`; it returns a chunk of the stream and the next
    state.
    """

    variables: list  # what its layers read, and move on
    step: typing.Callable
    state: typing.Any  # before the first chunk
    dtypes: typing.Any  # of the stream that it returns; `None` if they stay
    given: typing.Any = ()


def scan(model, links, stream, sides, reverse=False):
    """Runs links of a model's chain, chunk after chunk, or from the last to the first.

    Args:
        model: a `PerformerLM`.
        links: list of `Link`.
        stream: nest of tensors `(B, T, ...)`, what the first link gets.
        sides: nest of tensors `(B, T, ...)` that every link gets.

    Returns:
        `(stream, states)`: what the last link returned, `(B, T, ...)`, and the states
        of all links after the last chunk.
    """
    variables = {id(v): v for link in links for v in link.variables}.values()
    trained, fixed, seeds = split_variables(variables, model.weights)
    constants = values_of(fixed)

    def step(chunk, state, params):
        (stream, sides), (states, moving), (values, givens) = chunk, state, params
        mapping = [*zip(trained, values), *zip(seeds, moving), *zip(fixed, constants)]

        def run():
            x, new_states = stream, []
            for link, state, given in zip(links, states, givens):
                x, state = link.step(x, state, sides, given)
                new_states.append(state)
            return x, new_states

        run_cast = _Run(name="chunk", dtype=model.dtype_policy)
        (x, new_states), moved = call_with_values(
            lambda: run_cast(function=run),
            mapping,
            seeds,
            ("With recompute", "recompute=None"),
        )
        return x, (new_states, moved)

    dtypes = [link.dtypes for link in links if link.dtypes is not None]
    first = tf.nest.flatten(stream)[0]
    stream, (states, moved) = ops.chunk_scan(
        owned_by(model, step),
        _chunk_tokens(model, first.shape[1]),
        (stream, sides),
        ([link.state for link in links], values_of(seeds)),
        (values_of(trained), [link.given for link in links]),
        dtypes[-1] if dtypes else tf.nest.map_structure(lambda x: x.dtype, stream),
        reverse,
    )
    for seed, value in zip(seeds, moved):
        seed.assign(value)
    return stream, states


class _Run(keras.layers.Layer):
    """Calls a function with the autocasting of Keras' layers.

    A gradient is computed outside of the model's own call, and must cast alike.
    """

    def call(self, function):
        return function()


def _chunk_tokens(model, length):
    """Tokens of a chunk: long chunks keep more inside, short ones more states.

    A token keeps about 64 `hidden_dim` bytes inside each block of its chunk, a chunk
    hands on `4 hidden_dim` for each feature of the attention; both take alike at the
    root. A divisor of the length near it leaves no rest, which would be traced once
    more.
    """
    if length is None:
        return 1  # `chunk_scan` says what is wrong
    attentions = [block.attention for block in model.blocks]
    given = max(getattr(one, "chunk_size", None) or 0 for one in attentions)
    least = given or block_sizes().chunk
    states = [one.empty_state(1) for one in attentions if one is not None]
    num_features = max((x.shape[-1] for x in tf.nest.flatten(states)), default=0)
    tokens = max(math.isqrt(length * num_features // 16), least)
    divisors = (n for n in range(tokens, tokens // 2, -1) if length % n == 0)
    return next(divisors, tokens)
