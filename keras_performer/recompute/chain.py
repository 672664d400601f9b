"""Links, the parts of a model's chain, and the scan that runs some of them.

A model's layers read variables, and their dropout moves seeds on. The body of a scan,
which is run again for its gradient, may do neither, so that here all of them are
tensors that go into the loop, and the seeds come out of it: a chunk that is computed
again starts from the seeds that it had, and drops the same values.
"""

import math
import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers.keras_privates import value_without_autocast


class Link(typing.NamedTuple):
    """A part of a model.

    Attributes:
        variables: what its layers read, and move on.
        step: function of a chunk of the stream, the state, the sides (`passes.Sides`)
            and `given`; returns a chunk of the stream and the next state.
        state: nest of tensors, the state before the first chunk.
        dtypes: nest of dtypes of the stream that it returns.
        given: nest of tensors that all chunks read.
    """

    variables: list
    step: typing.Callable
    state: typing.Any
    dtypes: typing.Any
    given: typing.Any = ()


def scan(model, links, stream, sides, reverse=False):
    """Runs links of a model's chain, chunk after chunk of the sequence.

    Args:
        model: a `PerformerLM`.
        links: list of `Link`.
        stream: nest of tensors `(B, T, ...)`, what the first link gets.
        sides: nest of tensors `(B, T, ...)` that every link gets.
        reverse: bool, whether to go from the last chunk to the first.

    Returns:
        `(stream, states)`: what the last link returned, `(B, T, ...)`, and the states
        of all links after the last chunk.

    Raises:
        ValueError: if a link adds a loss or updates a weight that does not train, which
            a chunk that is computed again would repeat.
    """
    weights = {id(v) for v in model.weights}
    variables = {id(v): v for link in links for v in link.variables}.values()
    trained = [v for v in variables if v.trainable and id(v) in weights]
    fixed = [v for v in variables if not v.trainable and id(v) in weights]
    seeds = [v for v in variables if id(v) not in weights]
    constants = _values(fixed)

    def step(chunk, state, params):
        (stream, sides), (states, moving), (values, givens) = chunk, state, params
        scope = keras.StatelessScope(collect_losses=True)
        mapping = zip([*trained, *seeds, *fixed], [*values, *moving, *constants])
        for update in mapping:
            scope.add_update(update)  # as an initial mapping Keras would round them

        def run():
            x, new_states = stream, []
            for link, state, given in zip(links, states, givens):
                x, state = link.step(x, state, sides, given)
                new_states.append(state)
            return x, new_states

        with scope:
            results = _Run(name="chunk", dtype=model.dtype_policy)(function=run)
        _check_nothing_is_lost(scope, fixed, constants)
        x, new_states = results
        return x, (new_states, [scope.get_current_value(v) for v in seeds])

    dtypes = [link.dtypes for link in links if link.dtypes is not None]
    first = tf.nest.flatten(stream)[0]
    stream, (states, moved) = ops.chunk_scan(
        step,
        _chunk_tokens(model, first.shape[1]),
        (stream, sides),
        ([link.state for link in links], _values(seeds)),
        (_values(trained), [link.given for link in links]),
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


def _values(variables):
    # not autocast: gradients are summed over chunks in the dtype that goes in
    return [value_without_autocast(v) for v in variables]


def _check_nothing_is_lost(scope, fixed, constants):
    values = map(scope.get_current_value, fixed)
    changed = [v.path for v, x, y in zip(fixed, values, constants) if x is not y]
    if scope.losses or changed:
        raise ValueError(
            "With recompute, a call can neither add losses (add_loss, an activity "
            "regularizer) nor update weights that do not train. Received: "
            f"{len(scope.losses)} losses, and updates of {changed}. Leave them out, or "
            "use recompute=None."
        )


def _chunk_tokens(model, length):
    """How many tokens to a chunk: long chunks keep more inside, short ones more states.

    A token keeps about 64 `hidden_dim` bytes inside each block of its chunk, a chunk
    hands on `4 hidden_dim` for each feature of the attention; both take alike at the
    root. A divisor of the length near it leaves no rest, which would be traced once
    more.
    """
    if length is None:
        return 1  # `chunk_scan` says what is wrong
    attentions = [block.attention for block in model.blocks]
    least = max(getattr(one, "chunk_size", None) or 0 for one in attentions) or 64
    num_features = max(map(_num_features, attentions))
    tokens = max(math.isqrt(length * num_features // 16), least)
    divisors = (n for n in range(tokens, tokens // 2, -1) if length % n == 0)
    return next(divisors, tokens)


def _num_features(attention):
    """The last and longest axis of what the attention hands on."""
    if attention is None:
        return 0
    state = tf.nest.flatten(attention.empty_state(1))
    return max((x.shape[-1] for x in state), default=0)
