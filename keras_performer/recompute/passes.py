"""Passes over a long sequence, which cut the chain of a model into scans."""

import math
import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import call_inputs, keras_privates
from keras_performer.layers.call_inputs import as_mask
from keras_performer.ops.blocks import block_sizes
from keras_performer.ops.shapes import size, sum_dtype
from keras_performer.ops.slices import alone, current_slices
from keras_performer.recompute.stateless_calls import (
    call_with_values,
    owned_by,
    split_variables,
    values_of,
)


def check_block(recompute, causal, block):
    """Raises a `ValueError` if no pass can go through this block in chunks."""
    if recompute is None:
        return
    attention = block.attention
    if block.convolution is not None and not causal:
        raise ValueError(
            "recompute processes a sequence in chunks, but a bidirectional convolution "
            "needs tokens of the next chunk: use causal=True, recompute=None or "
            f"conv_kernel_size=None. Received: recompute={recompute!r}, causal=False "
            f"and conv_kernel_size={block.conv_kernel_size}"
        )
    if attention is None:
        return
    if not attention.supports_state or not (causal or attention.two_pass_methods):
        needed = "a state"
        if not causal:
            needed = (
                "the methods `absorb` and `answer`, which `PerformerAttention` has "
                "without a forget gate"
            )
        raise ValueError(
            "recompute processes a sequence in chunks, so attention needs "
            f"{needed}: use recompute=None. Received: recompute={recompute!r}, "
            f"causal={causal} and {type(attention).__name__}"
        )


def _check_regularizer(layer):
    """Raises a `ValueError` for an activity regularizer of a layer that is cut.

    Keras applies it to the outputs of the layer's own call, and no chunk has that call.
    """
    if layer.activity_regularizer is not None:
        raise ValueError(
            f"With recompute, {type(layer).__name__} cannot have an activity "
            "regularizer, because its outputs exist for one chunk at a time: leave it "
            f"out, or use recompute=None. Received: {layer.name!r} with "
            f"activity_regularizer={layer.activity_regularizer!r}"
        )


def check_slices(model):
    """Raises a `ValueError` if recompute cannot handle slices of sequences."""
    received = f"Received: recompute={model.recompute!r}"
    if model.recompute == "network":
        raise ValueError(
            "With sequence_parallel the replicas exchange states in each block, so "
            f'recompute must be "block" or None. {received}'
        )
    for block in model.blocks:
        attention = block.attention
        if attention is None:
            continue
        is_linear = hasattr(attention, "before_slice")
        if not is_linear or (
            not model.causal and "look_ahead" in attention.two_pass_methods
        ):
            raise ValueError(
                "With sequence_parallel and recompute, attention must be "
                "PerformerAttention or LinearTransformerAttention, and without a "
                f"window if bidirectional: use recompute=None. {received}, and "
                f"attention={attention.name!r}"
            )
        if block.convolution is not None and block.dropout.rate:
            raise ValueError(
                "With sequence_parallel and recompute, a convolution before the "
                "attention needs dropout=0, because its dropout would differ between "
                f"passes: use recompute=None. {received}, conv_kernel_size="
                f"{block.conv_kernel_size} and dropout={block.dropout.rate}"
            )


def token_values(model, measure, inputs, targets, training):
    """Computes `measure` for each token, a nest of tensors `(B, T)`.

    With `recompute="network"`, which is causal, it takes a single scan, with "block" a
    scan for each block. `measure` is a function of targets and outputs of a chunk. It
    returns a nest of tensors `(B, tokens)`, and its attribute `dtypes` has the dtypes.
    """
    _check_regularizer(model)
    links = [_embedding(model, inputs, training)]
    end = [_read_out(model, measure)]
    return _blocks(model, links, end, inputs, Sides(targets=targets), training)


def blocks(model, x, mask, training):
    """Applies the blocks of a model to x `(B, T, hidden_dim)`, with scans for each."""
    mask = as_mask("mask", mask, x)
    sides = Sides(mask=() if mask is None else (mask,))
    return _blocks(model, [], [], (x, ()), sides, training)[0]


def _blocks(model, links, end, stream, sides, training):
    """Runs `links`, then the blocks, then `end`, cut into scans.

    `links` are in the scan of the first block, unless it is bidirectional or sequences
    are cut into slices, and `end` in the last scan of the last block.
    """
    rotates = any(getattr(block.attention, "rotary", None) for block in model.blocks)
    slices = current_slices()
    if rotates and not model.causal:
        tokens = tf.nest.flatten(stream)[0]
        batch, length = tf.unstack(tf.shape(tokens)[:2])
        positions = call_inputs.next_positions(length, None, slices)
        positions = tf.tile(positions, [batch, 1])
        positions = tf.ensure_shape(positions, tokens.shape[:2])
        sides = sides._replace(positions=(positions,))
    for index, block in enumerate(model.blocks):
        needs_all_keys = block.attention is not None and not model.causal
        is_cut = index and model.recompute == "block" and slices is None
        if needs_all_keys:
            _check_regularizer(block)
            _check_regularizer(block.attention)
        if links and (is_cut or needs_all_keys):
            stream, _ = scan(model, links, stream, sides)
            links = []
        batch = tf.shape(tf.nest.flatten(stream)[0])[0]
        if not needs_all_keys:
            state = block.get_initial_state(batch)
            if slices is not None:
                given = model, slices, block, links, stream, sides, state
                stream, state = _before_slice(*given)
                links = []
            links = [*links, _block(block, state, training)]
        elif "look_ahead" in block.attention.two_pass_methods:
            later, _ = scan(model, [_later(block, batch)], stream, sides, reverse=True)
            dtypes = tf.nest.map_structure(lambda x: x.dtype, stream)
            stream = stream, later
            links = [_earlier(block, batch, dtypes, training)]
        else:
            _, [keys] = scan(model, [_keys(block, batch)], stream, sides)
            if slices is not None:
                keys = block.attention.state_of_all(slices, keys)
            links = [_queries(block, keys, training)]
    return scan(model, [*links, *end], stream, sides)[0]


def _embedding(model, inputs, training):
    def step(inputs, state, sides, given):
        x, extra, state = model.embed(inputs, state, training)
        if keras_privates.implicit_mask(x) is not None:
            raise ValueError(
                "recompute supports no mask in fit and evaluate: use recompute=None, "
                "or an embedding without mask_zero, and sample_weight for tokens that "
                f"do not count. Received: {type(model.embedding).__name__} that makes "
                "a mask"
            )
        return (x, extra), state

    variables = _without(model.variables, model.blocks)
    dtypes = model.compute_dtype, getattr(model.embedding, "extra_dtypes", ())
    state, slices = model.embedding_state(tf.shape(inputs)[0]), current_slices()
    if slices is not None:
        state["position"] += slices.index * size(inputs, 1)
    return Link(variables, step, state, dtypes)


def _before_slice(model, slices, block, links, stream, sides, empty):
    """Runs `links`; returns their stream, and a block's state before this slice.

    The scan of the links also collects the keys of the block, which is causal. Then the
    replicas exchange the states of their slices. A convolution needs its neighbour's
    tokens first, so it takes a scan of its own.
    """
    attention, convolution = block.attention, block.convolution
    parts = empty if convolution is not None else {"attention": empty}
    if links and (attention is None or convolution is not None):
        stream, _ = scan(model, links, stream, sides)
        links = []
    if convolution is not None:
        last = slice(-convolution.kernel_size, None)
        tokens = block.convolution_norm(stream[0][:, last])
        for mask in sides.mask:
            tokens *= tf.cast(mask[:, last, tf.newaxis], tokens.dtype)
        before = convolution.before_slice(slices, tokens)
        parts = {**parts, "convolution": {"inputs": before}}
    if attention is not None:
        tokens = tf.nest.flatten(stream)[0]
        batch, length = size(tokens, 0), size(tokens, 1)
        state = {**parts["attention"]}
        state["position"] += slices.index * length
        sums = sum_dtype(block.compute_dtype)
        total = tf.zeros((batch, attention.num_key_value_heads), sums)
        link = _keys_of_slice(block, {**parts, "attention": state, "total": total})
        stream, [*_, found] = scan(model, [*links, link], stream, sides)
        total = found["total"] if attention.forget_gate else None
        keys = found["attention"]["attention"]
        keys = attention.before_slice(slices, tokens, keys, total)
        parts = {**parts, "attention": {**state, "attention": keys}}
    return stream, parts if convolution is not None else parts["attention"]


def _keys_of_slice(block, state):
    """Makes the link that adds the keys of a causal block to a state.

    Its stream stays the same. The state also has "total", the log-decay of the far
    keys.
    """
    attention = block.attention

    def step(stream, state, sides, given):
        x, later = stream[0], dict(state)
        if block.convolution is not None:
            mask = sides.mask[0] if sides.mask else None
            before = {name: state[name] for name in ("convolution", "attention")}
            x, later["convolution"], _ = block.convolve(
                x, mask, False, None, before, True
            )
        position, count = state["attention"]["position"], size(x, 1)
        given = sides.of_attention()
        if attention.rotary is not None:
            given["positions"] = position[:, tf.newaxis] + tf.range(count)
        keys = state["attention"]["attention"]
        keys, total = attention.state_after(
            block.attention_norm(x), state=keys, **given
        )
        later["attention"] = {"position": position + count, "attention": keys}
        if total is not None:
            later["total"] += total
        return stream, later

    return Link(block.variables, step, state, None)


def _block(block, state, training):
    """Makes the link of a block whose tokens do not need later tokens."""

    def step(stream, state, sides, given):
        x, extra = stream
        x, state = block(
            x, *sides.mask, training=training, state=state, return_state=True
        )
        return (x, extra), state

    return Link(block.variables, step, state, None)


def _keys(block, batch):
    """Makes the first link of a bidirectional block, which returns only a state."""

    def step(stream, state, sides, given):
        x = block.attention_norm(stream[0])
        state = block.attention.absorb(x, state=state, **sides.of_attention())
        return (), state

    return Link(block.variables, step, block.attention.empty_state(batch), ())


def _queries(block, keys, training):
    """Makes the second link, which answers queries with the state of all keys."""

    def step(stream, state, sides, keys):
        x, extra = stream
        attended = block.attention.answer(
            block.attention_norm(x),
            state=keys,
            training=training,
            **sides.of_attention(),
        )
        return (block.add(x, attended, training), extra), state

    return Link(block.variables, step, (), None, keys)


def _later(block, batch):
    """Makes the first link of a bidirectional block with a window; scan in reverse."""

    def step(stream, state, sides, given):
        x = block.attention_norm(stream[0])
        return block.attention.look_ahead(x, state=state, **sides.of_attention())

    sums = sum_dtype(block.compute_dtype).name
    state = block.attention.empty_state(batch)
    return Link(block.variables, step, state, (sums, sums))


def _earlier(block, batch, dtypes, training):
    """Makes the second link; its stream includes the results of the first link."""

    def step(stream, state, sides, given):
        (x, extra), later = stream
        attended, state = block.attention.look_back(
            block.attention_norm(x),
            state=state,
            later=later,
            training=training,
            **sides.of_attention(),
        )
        return (block.add(x, attended, training), extra), state

    return Link(block.variables, step, block.attention.empty_state(batch), dtypes)


def _read_out(model, measure):
    def step(stream, state, sides, given):
        return measure(sides.targets, model.read_out(*stream)), state

    # A head may share weights with the embedding. It shares none with the positions,
    # whose table may be long: the loop sums a gradient for each variable.
    table = [] if model.positions is None else [model.positions]
    variables = _without(model.variables, [*model.blocks, *table])
    return Link(variables, step, (), measure.dtypes)


def _without(variables, layers):
    """Returns the variables that belong to none of the layers."""
    owned = {id(v) for layer in layers for v in layer.variables}
    return [v for v in variables if id(v) not in owned]


# -- Links, and the scan that runs some of them.
#
# The body of a scan runs again for its gradient, so it reads no variables: they go into
# the loop as tensors, and seeds come out of it (`stateless_calls.py`).


class Sides(typing.NamedTuple):
    """Arguments of every link besides its chunk of the stream; `()` if not given.

    A bidirectional block with rotary attention needs positions.
    """

    mask: tuple = ()  # contains the mask (B, tokens)
    targets: typing.Any = ()  # (B, tokens, ...)
    positions: tuple = ()  # contains the positions (B, tokens)

    def of_attention(self):
        """Returns arguments for methods of an attention besides tokens and state."""
        mask = self.mask[0] if self.mask else None
        return {"mask": mask, **dict(zip(["positions"], self.positions))}


class Link(typing.NamedTuple):
    """Part of a model.

    `step(chunk of the stream, state, sides, given)` returns the next chunk of the
    stream and the next state.
    """

    variables: list  # that its layers read or update
    step: typing.Callable
    state: typing.Any  # before the first chunk
    dtypes: typing.Any  # of the stream that it returns; `None` if they stay the same
    given: typing.Any = ()


def scan(model, links, stream, sides, reverse=False):
    """Runs links of a model's chain over one chunk after another.

    `stream` is a nest of tensors `(B, T, ...)` for the first link. With `reverse` the
    scan goes from the last chunk to the first. Returns the stream from the last link,
    and the states of all links after the last chunk.
    """
    variables = {id(v): v for link in links for v in link.variables}.values()
    trained, fixed, seeds = split_variables(variables, model.weights)
    constants = values_of(fixed)

    def step(chunk, state, params):
        (stream, sides), (states, moving), (values, givens) = chunk, state, params
        mapping = [*zip(trained, values), *zip(seeds, moving), *zip(fixed, constants)]

        def run():
            x, new_states = stream, []
            with alone():
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
    """Layer that calls a function, with the autocast of Keras' layers.

    The gradient runs outside of the model's own call, and must cast in the same way.
    """

    def call(self, function):
        return function()


def _chunk_tokens(model, length):
    """Returns the number of tokens in a chunk for the least memory, roughly.

    Inside its chunk, a token keeps about `64 hidden_dim` bytes in each block of a scan.
    Between chunks, `4 hidden_dim` bytes are kept for each feature of the attention in
    each block of the model, and twice for slices. Both take equal memory at the square
    root. If possible, the size is a divisor of the length near it: a shorter last chunk
    would be traced once more.
    """
    if length is None:
        return 1  # `chunk_scan` raises the error
    attentions = [block.attention for block in model.blocks]
    given = max(getattr(one, "chunk_size", None) or 0 for one in attentions)
    least = given or block_sizes().chunk
    states = [one.empty_state(1) for one in attentions if one is not None]
    num_features = max((x.shape[-1] for x in tf.nest.flatten(states)), default=0)
    kept = len(attentions) if model.recompute == "block" else 1
    kept *= 1 if current_slices() is None else 2
    tokens = max(math.isqrt(length * num_features * kept // 16), least)
    divisors = (n for n in range(tokens, tokens // 2, -1) if length % n == 0)
    return next(divisors, tokens)
