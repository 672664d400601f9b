"""A loop over the chunks of a sequence that keeps only the states between chunks."""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_performer.ops.blocks import Blocks
from keras_performer.ops.checks import check_chunk_size
from keras_performer.ops.gradients import custom_gradient


def chunk_scan(
    function: Callable[[Any, Any, Any], tuple[Any, Any]],
    chunk_size: int,
    sequences: Any,
    state: Any,
    params: Any,
    output_dtypes: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Applies a function to one chunk after another, and recomputes for gradients.

    The backward pass keeps only the sequences and the state before each chunk, and
    recomputes everything inside a chunk. Gradients are exact, and calls can be nested.
    bfloat16 outputs are slow under XLA on a CPU, which copies all outputs at each
    chunk.

    Args:
        function: takes a chunk of the sequences, the state and the params, each nested
            as here, and returns the outputs of the chunk and the next state. It must be
            pure: equal arguments give equal results, and it reads no variables.
        chunk_size: int, tokens in a chunk; the last chunk may have fewer.
        sequences: nest of tensors `(B, L, ...)`, all of one known length L.
        state: nest of tensors, the state before the first chunk.
        params: nest of tensors that every chunk reads. Their gradients are summed over
            chunks in their own dtype.
        output_dtypes: nest of dtypes of the outputs, which are tensors `(B, tokens,
            ...)`.
        reverse: bool, whether to go from the last chunk to the first. Defaults to
            `False`.

    Returns:
        `(outputs, state)`: the outputs of all chunks, `(B, L, ...)`, and the state at
        the end. Integer tensors may pass through, but have no gradients.

    Reference:
        Likhosherstov et al. 2020, Sub-Linear Memory: How to Make Performers SLiM,
        arXiv 2012.11346.

    Example:

    >>> def running_sum(x, total, scale):
    ...     sums = total + tf.cumsum(scale * x, axis=1)
    ...     return sums, sums[:, -1:]
    >>> x = tf.ones((1, 5))
    >>> sums, total = chunk_scan(running_sum, 2, x, tf.zeros((1, 1)), 2.0, tf.float32)
    >>> sums.numpy().tolist()
    [[2.0, 4.0, 6.0, 8.0, 10.0]]
    """
    sequences, state, params = (
        tf.nest.map_structure(tf.convert_to_tensor, x)
        for x in (sequences, state, params)
    )
    check_chunk_size(chunk_size)
    xs, end, ps = (tf.nest.flatten(x) for x in (sequences, state, params))
    length = _known_length(xs)

    def call(chunk, inner, given):
        """Calls the function with flat lists of tensors, and flattens its results."""
        output, new = function(
            tf.nest.pack_sequence_as(sequences, chunk),
            tf.nest.pack_sequence_as(state, inner),
            tf.nest.pack_sequence_as(params, given),
        )
        tf.nest.assert_same_structure(output_dtypes, output)
        tf.nest.assert_same_structure(state, new)
        # a loop needs static shapes that do not change
        new = [tf.ensure_shape(n, s.shape) for n, s in zip(tf.nest.flatten(new), inner)]
        return tf.nest.flatten(output), new

    dtypes = tf.nest.flatten(output_dtypes)
    whole = length - length % chunk_size
    parts = []
    pieces = (0, whole, chunk_size), (whole, length, length - whole)
    for start, stop, size in pieces[::-1] if reverse else pieces:
        if stop > start:
            part = xs if stop - start == length else [x[:, start:stop] for x in xs]
            output, end = _scan(call, size, part, end, ps, dtypes, reverse)
            parts.append(output)
    parts = parts[::-1] if reverse else parts
    outputs = [x[0] if len(x) == 1 else tf.concat(x, 1) for x in zip(*parts)]
    return (
        tf.nest.pack_sequence_as(output_dtypes, outputs),
        tf.nest.pack_sequence_as(state, end),
    )


def _known_length(xs):
    """Returns the static length of all sequences; XLA skips checks at run time."""
    shapes = [x.shape for x in xs]
    received = f"Received: sequences of shapes {[str(shape) for shape in shapes]}"
    if not xs or any(shape.rank is None or shape.rank < 2 for shape in shapes):
        raise ValueError(
            f"sequences must be tensors (batch, length, ...), at least one. {received}"
        )
    lengths = {shape[1] for shape in shapes}
    if None in lengths:
        raise ValueError(
            f"sequences must have a known length. {received}. Give the data a static "
            "shape, the same in every batch, for example with "
            "`padded_batch(..., padded_shapes=...)`. A model that had data of another "
            "length is traced again, for any length: compile the model again before "
            "you fit another length or evaluate it. compile(model.optimizer, ...) "
            "keeps the optimizer's state."
        )
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            "sequences must all have the same length, axis 1, of at least 1. "
            f"{received}. Pad or cut them to one length."
        )
    return lengths.pop()


def _scan(call, chunk_size, xs, state, params, dtypes, reverse):
    """Runs `chunk_scan` for flat lists and chunks of equal length."""
    blocks = Blocks(xs[0].shape[1], chunk_size)
    splits = len(xs), len(state), len(params)

    @custom_gradient
    def scan(*flat):
        xs, state, params = _split(flat, *splits)
        outputs, end, starts = _forward(
            call, blocks, xs, state, params, dtypes, reverse
        )

        def gradient(*upstream):
            douts, dend = _split(upstream, len(outputs), len(end))
            return _backward(call, blocks, xs, starts, params, douts, dend, reverse)

        return (*outputs, *end), gradient

    return _split(scan(*xs, *state, *params), len(dtypes), len(state))


def _forward(call, blocks, xs, state, params, dtypes, reverse):
    """Returns the outputs, the last state, and the states before each chunk."""
    cut = [blocks.cut(x) for x in xs]
    shapes = []

    def body(i, state, outputs, starts):
        starts = [array.write(i, s) for array, s in zip(starts, state)]
        output, state = call([x[:, i] for x in cut], state, params)
        shapes[:] = [x.shape for x in output]
        outputs = [array.write(i, x) for array, x in zip(outputs, output)]
        return state, outputs, starts

    arrays = [blocks.array(dtype) for dtype in dtypes]
    starts = [blocks.array(s.dtype) for s in state]
    state, outputs, starts = blocks.loop(body, (state, arrays, starts), reverse)
    outputs = [
        blocks.join(array, (shape[0], xs[0].shape[1], *shape[2:]))
        for array, shape in zip(outputs, shapes)
    ]
    return outputs, state, [array.stack() for array in starts]


def _backward(call, blocks, xs, starts, params, douts, dend, reverse):
    """Returns the gradients of sequences, state and params; `None` for integers."""
    cut, douts = ([blocks.cut(x) for x in tensors] for tensors in (xs, douts))

    def body(i, dstate, dparams, dxs):
        chunk, state = [x[:, i] for x in cut], [s[i] for s in starts]
        sources = [_floats(tensors) for tensors in (state, params, chunk)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            output, end = call(chunk, state, params)
            targets = output + _floats(end)
        dstate, dmore, dchunk = tape.gradient(
            targets,
            sources,
            output_gradients=[d[:, i] for d in douts] + list(dstate),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # the gradient of a gather is `tf.IndexedSlices`
        dmore = [total + tf.convert_to_tensor(d) for total, d in zip(dparams, dmore)]
        dxs = [array.write(i, d) for array, d in zip(dxs, dchunk)]
        return dstate, dmore, dxs

    dend = [d for d, s in zip(dend, starts) if _has_gradient(s)]
    dparams = [tf.zeros_like(p) for p in _floats(params)]
    arrays = [blocks.array(x.dtype) for x in _floats(xs)]
    dstate, dparams, arrays = blocks.loop(body, (dend, dparams, arrays), not reverse)
    dxs = [blocks.join_like(array, x) for array, x in zip(arrays, _floats(xs))]
    found = ((xs, dxs), (starts, dstate), (params, dparams))
    return [gradient for pair in found for gradient in _with_none(*pair)]


def _floats(tensors):
    return [x for x in tensors if _has_gradient(x)]


def _has_gradient(x):
    return x.dtype.is_floating or x.dtype.is_complex


def _with_none(tensors, gradients):
    """Inserts `None` into the gradients for tensors that have none."""
    gradients = iter(gradients)
    return [next(gradients) if _has_gradient(x) else None for x in tensors]


def _split(flat, *lengths):
    flat = iter(flat)
    return [list(itertools.islice(flat, length)) for length in lengths]
