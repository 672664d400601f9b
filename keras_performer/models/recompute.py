"""Passes over a long sequence that keep little and compute the rest again.

A model's layers read variables, and their dropout moves seeds on. A loop whose body is
run again for its gradient may do neither, so that here all of them are tensors that go
into the loop, and the seeds come out of it: a chunk that is computed again starts from
the seeds that it had, and drops the same values.
"""

import math

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import two_pass


def network(model, measure, inputs, targets, training):
    """What `measure` says about each token, in one loop from embedding to outputs.

    For the backward pass it keeps the tokens, and the state of the model before each
    chunk.

    Args:
        model: a causal `PerformerLM`.
        measure: function of targets and outputs of a chunk that returns a list of
            float32 tensors `(B, tokens)`.
        inputs: int tensor of shape `(B, T)`.
        targets: tensor of shape `(B, T, ...)`.
        training: bool, whether to apply dropout.

    Returns:
        list of float32 tensors `(B, T)`.
    """

    def step(chunk, state, _):
        inputs, targets = chunk
        outputs, state = model(
            inputs, training=training, state=state, return_state=True
        )
        return measure(targets, outputs), state

    state = model.initial_state(tf.shape(inputs)[0])
    values, _ = _scan(model, [model], step, (inputs, targets), state, measure.dtypes)
    return values


def block_by_block(model, measure, inputs, targets, training):
    """As `network`, in a loop for each block; it keeps what each block reads.

    The model need not be causal.
    """
    ends = [model.norm, model.head]
    others = [x for x in model.layers if x not in (*ends, *model.blocks)]

    def embed(inputs, state, _):
        x, extra, state = model.embed(inputs, state)
        return (model.embedding_dropout(x, training=training), extra), state

    def read_out(chunk, state, _):
        x, extra, targets = chunk
        return measure(targets, model.read_out(x, extra)), state

    state = model.embedding_state(tf.shape(inputs)[0])
    dtypes = model.compute_dtype, model.extra_dtypes
    (x, extra), _ = _scan(model, others, embed, inputs, state, dtypes)
    x = blocks(model, x, None, training)
    sequences = x, extra, targets
    values, _ = _scan(model, ends, read_out, sequences, (), measure.dtypes)
    return values


def blocks(model, x, mask, training):
    """The blocks of a model, each in chunks of the sequence.

    Args:
        model: a `PerformerLM`.
        x: tensor of shape `(B, T, hidden_dim)`.
        mask: bool tensor of shape `(B, T)`, or `None`.
        training: bool, whether to apply dropout.

    Returns:
        Tensor of shape `(B, T, hidden_dim)`.
    """
    sequences = [] if mask is None else [mask]
    for block in model.blocks:
        run = _causal_block if model.causal else _bidirectional_block
        x = run(model, block, [x, *sequences], training)
    return x


def _causal_block(model, block, sequences, training):
    def step(chunk, state, _):
        return block(*chunk, training=training, state=state, return_state=True)

    state = block.attention.initial_state(tf.shape(sequences[0])[0])
    dtype = sequences[0].dtype
    return _scan(model, [block], step, sequences, state, dtype)[0]


def _bidirectional_block(model, block, sequences, training):
    attention = block.attention

    def absorb(chunk, state, _):
        x, *mask = chunk
        x = block.attention_norm(x)
        return (), two_pass.absorb_keys(attention, x, *mask, state=state)

    def answer(chunk, _, keys):
        x, *mask = chunk
        attended = two_pass.answer_queries(
            attention, block.attention_norm(x), *mask, state=keys, training=training
        )
        return block.add(x, attended, training), ()

    state = attention.initial_state(tf.shape(sequences[0])[0])
    dtype = sequences[0].dtype
    _, keys = _scan(model, [block], absorb, sequences, state, ())
    return _scan(model, [block], answer, sequences, (), dtype, given=keys)[0]


def _scan(model, layers, step, sequences, state, dtypes, given=()):
    """`chunk_scan` of a step that calls layers: `(outputs, state)`.

    `step` takes a chunk, the state and `given`, and returns outputs and the state.
    """
    weights = {id(v) for layer in layers for v in layer.weights}
    variables = [v for layer in layers for v in layer.variables]
    trained = [v for v in variables if v.trainable and id(v) in weights]
    fixed = [v for v in variables if not v.trainable and id(v) in weights]
    seeds = [v for v in variables if id(v) not in weights]
    constants = list(zip(fixed, _values(fixed)))

    def pure_step(chunk, state, params):
        state, moving = state
        values, given = params
        mapping = [*zip(trained, values), *zip(seeds, moving), *constants]
        with keras.StatelessScope(mapping) as scope:
            outputs, state = step(chunk, state, given)
        return outputs, (state, [scope.get_current_value(v) for v in seeds])

    outputs, (state, moved) = ops.chunk_scan(
        pure_step,
        _chunk_tokens(model, tf.nest.flatten(sequences)[0].shape[1]),
        sequences,
        (state, _values(seeds)),
        (_values(trained), given),
        dtypes,
    )
    for seed, value in zip(seeds, moved):
        seed.assign(value)
    return outputs, state


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
