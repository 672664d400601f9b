"""Passes over a long sequence that keep little and compute the rest again.

A model is a chain of links: its embedding, its blocks, and what reads them out. One
`chunk_scan` runs some of them over the sequence and keeps what goes into it and the
states between chunks; how the chain is cut into scans decides what is kept.

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
from keras_performer.layers import two_pass


def network(model, measure, inputs, targets, training):
    """What `measure` says about each token, in one scan of the whole chain.

    Args:
        model: a causal `PerformerLM`.
        measure: function of targets and outputs of a chunk that returns a list of
            tensors `(B, tokens)` of its `dtypes`.
        inputs: int tensor of shape `(B, T)`.
        targets: tensor of shape `(B, T, ...)`.
        training: bool, whether to apply dropout.

    Returns:
        list of tensors `(B, T)`.
    """
    batch = tf.shape(inputs)[0]
    blocks = [_causal_block(block, batch, training) for block in model.blocks]
    links = [_embedding(model, batch, training), *blocks, _read_out(model, measure)]
    return _scan(model, links, inputs, ((), targets))[0]


def block_by_block(model, measure, inputs, targets, training):
    """As `network`, in a scan for each block; the model need not be causal."""
    start = _embedding(model, tf.shape(inputs)[0], training)
    end = _read_out(model, measure)
    return _blocks(model, [start], [end], inputs, ((), targets), training)


def blocks(model, x, mask, training):
    """The blocks of a model, a scan for each.

    Args:
        model: a `PerformerLM`.
        x: tensor of shape `(B, T, hidden_dim)`.
        mask: bool tensor of shape `(B, T)`, or `None`.
        training: bool, whether to apply dropout.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`.
    """
    sides = () if mask is None else (mask,), ()
    return _blocks(model, [], [], (x, ()), sides, training)[0]


def _blocks(model, links, end, stream, sides, training):
    """Cuts the chain between blocks; the ends share a scan with the block beside."""
    for index, block in enumerate(model.blocks):
        if links and (index or not model.causal):
            stream, _ = _scan(model, links, stream, sides)
            links = []
        batch = tf.shape(tf.nest.flatten(stream)[0])[0]
        if model.causal:
            links = [*links, _causal_block(block, batch, training)]
        else:
            _, [keys] = _scan(model, [_keys(block, batch)], stream, sides)
            links = [_queries(block, keys, training)]
    return _scan(model, [*links, *end], stream, sides)[0]


class _Link(typing.NamedTuple):
    """A part of a model.

    Attributes:
        layers: the layers that it calls.
        step: function of a chunk of the stream, the state, the sides (mask and targets)
            and `given`; returns a chunk of the stream and the next state.
        state: nest of tensors, the state before the first chunk.
        dtypes: nest of dtypes of the stream that it returns.
        given: nest of tensors that all chunks read.
    """

    layers: list
    step: typing.Callable
    state: typing.Any
    dtypes: typing.Any
    given: typing.Any = ()


def _embedding(model, batch, training):
    def step(inputs, state, sides, given):
        x, extra, state = model.embed(inputs, state)
        return (model.embedding_dropout(x, training=training), extra), state

    rest = (*model.blocks, model.norm, model.head)
    layers = [layer for layer in model.layers if layer not in rest]
    dtypes = model.compute_dtype, model.extra_dtypes
    return _Link(layers, step, model.embedding_state(batch), dtypes)


def _causal_block(block, batch, training):
    def step(stream, state, sides, given):
        (x, extra), (mask, _) = stream, sides
        x, state = block(x, *mask, training=training, state=state, return_state=True)
        return (x, extra), state

    return _Link([block], step, block.attention.initial_state(batch), None)


def _keys(block, batch):
    """The first pass of a block that is not causal; nothing comes out but its state."""

    def step(stream, state, sides, given):
        (x, _), (mask, _) = stream, sides
        x = block.attention_norm(x)
        return (), two_pass.absorb_keys(block.attention, x, *mask, state=state)

    return _Link([block], step, block.attention.initial_state(batch), ())


def _queries(block, keys, training):
    def step(stream, state, sides, keys):
        (x, extra), (mask, _) = stream, sides
        attended = two_pass.answer_queries(
            *(block.attention, block.attention_norm(x), *mask),
            state=keys,
            training=training,
        )
        return (block.add(x, attended, training), extra), state

    return _Link([block], step, (), None, keys)


def _read_out(model, measure):
    def step(stream, state, sides, given):
        _, targets = sides
        return measure(targets, model.read_out(*stream)), state

    return _Link([model.norm, model.head], step, (), measure.dtypes)


def _scan(model, links, stream, sides):
    """`chunk_scan` of links: the stream that the last returns, and all their states."""
    layers = [layer for link in links for layer in link.layers]
    weights = {id(v) for layer in layers for v in layer.weights}
    variables = [v for layer in layers for v in layer.variables]
    trained = [v for v in variables if v.trainable and id(v) in weights]
    fixed = [v for v in variables if not v.trainable and id(v) in weights]
    seeds = [v for v in variables if id(v) not in weights]
    constants = list(zip(fixed, _values(fixed)))

    def step(chunk, state, params):
        (stream, sides), (states, moving), (values, givens) = chunk, state, params
        mapping = [*zip(trained, values), *zip(seeds, moving), *constants]
        new_states = []
        with keras.StatelessScope(mapping) as scope:
            for link, state, given in zip(links, states, givens):
                stream, state = link.step(stream, state, sides, given)
                new_states.append(state)
        return stream, (new_states, [scope.get_current_value(v) for v in seeds])

    dtypes = [link.dtypes for link in links if link.dtypes is not None]
    first = tf.nest.flatten(stream)[0]
    stream, (states, moved) = ops.chunk_scan(
        step,
        _chunk_tokens(model, first.shape[1]),
        (stream, sides),
        ([link.state for link in links], _values(seeds)),
        (_values(trained), [link.given for link in links]),
        dtypes[-1] if dtypes else tf.nest.map_structure(lambda x: x.dtype, stream),
    )
    for seed, value in zip(seeds, moved):
        seed.assign(value)
    return stream, states


def _values(variables):
    return [tf.convert_to_tensor(v) for v in variables]


def _chunk_tokens(model, length):
    """How many tokens to a chunk: long chunks keep more inside, short ones more states.

    A token keeps about 64 `hidden_dim` bytes inside each block of its chunk, a chunk
    hands on `4 hidden_dim num_random_features`; both take alike at the root. A divisor
    of the length near it leaves no rest, which would be traced once more.
    """
    if length is None:
        return 1  # `chunk_scan` says what is wrong
    features = model.num_random_features or model.hidden_dim // model.num_heads
    least = model.chunk_size or 64
    tokens = max(math.isqrt(length * features // 16), least)
    divisors = (n for n in range(tokens, tokens // 2, -1) if length % n == 0)
    return next(divisors, tokens)
