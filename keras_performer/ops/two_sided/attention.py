"""Bidirectional attention with an exact window.

Near and far keys come from one pass over chunks, under one stabilizer. Where this loses
far weights, they come from two causal passes, which lose none.

On a CPU examples are computed a few at a time: blocks of few examples are long, so that
what is read around them counts little.
"""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.arrays import new_array
from keras_performer.ops.blocks import block_sizes
from keras_performer.ops.devices import has_tpu
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.kernels.parts import each
from keras_performer.ops.linear import both_sides
from keras_performer.ops.shapes import size, sizes
from keras_performer.ops.two_sided.loops import TwoSided
from keras_performer.ops.visibility import Visibility


def attend(kernel, query, key, value, mask, gain, window, chunk_size, jit_compile):
    """Attention to near and far keys, under one normalizer.

    Args:
        kernel: a `Kernel` in the dtype of the loops.
        query, key, value: tensors `(B, T, N, H)`, `(B, T, K, H)` and `(B, T, K, V)`.
        mask: bool tensor `(B, T)`, true for visible keys, or `None`.
        gain: tensor `(N, 1)`, the logarithm of what multiplies far weights.
        window: int, keys at less than this distance are near.
        chunk_size, jit_compile: as in `causal_attention`.

    Returns:
        Tensor `(B, T, N, V)` in the dtype of the loops.
    """

    @custom_gradient
    def attention(query, key, value, gain, *trained):
        inputs = kernel.with_trained(trained), window, chunk_size, mask
        inputs = *inputs, query, key, value, gain
        output, *saved = compile.call(_forward, *inputs, jit_compile=jit_compile)

        def gradient(doutput):
            arguments = *inputs, output, *saved, doutput
            options = {"jit_compile": jit_compile, "inline": False}
            return compile.call(_backward, *arguments, **options)

        return output, gradient

    return attention(query, key, value, gain, *kernel.trained)


def _forward(kernel, window, chunk_size, mask, query, key, value, gain):
    """The output, log-sums, and of which examples far weights were lost."""

    def attention(mask, *inputs):
        loops = TwoSided(kernel, *inputs, mask, gain, window, chunk_size)
        *found, lost = loops.forward(*inputs)

        def exactly():
            # the backward pass needs no log-sums of it
            return _in_two(kernel, window, chunk_size, mask, *inputs, gain), found[1]

        if kernel.max_rise is not None:
            found = tf.cond(lost, exactly, lambda: tuple(found))
        return *found, tf.fill((size(inputs[0], 0),), lost)

    length, heads = sizes(query)[1:3]
    dims = size(value, 3), 1
    shapes = [(gain.dtype, (length, heads, dim)) for dim in dims]
    output, log_sums, lost = _by_examples(
        _at_once(kernel, query, key),
        attention,
        (mask, query, key, value),
        [*shapes, (tf.bool, ())],
    )
    shape = query.shape[:3]
    output = tf.ensure_shape(output, (*shape, value.shape[3]))
    return output, tf.ensure_shape(log_sums, (*shape, 1)), lost


def _backward(
    kernel,
    window,
    chunk_size,
    mask,
    query,
    key,
    value,
    gain,
    output,
    log_sums,
    lost,
    doutput,
):
    """Gradients of query, key, value, gain, and what of the kernel trains."""

    def gradients(mask, query, key, value, output, log_sums, lost, doutput):
        inputs = query, key, value

        def in_chunks():
            loops = TwoSided(kernel, *inputs, mask, gain, window, chunk_size)
            return loops.backward(*inputs, output, log_sums, doutput)

        def exactly():
            sources = *inputs, gain, *kernel.trained
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                found = _in_two(kernel, window, chunk_size, mask, *inputs, gain)
            return tuple(tape.gradient(found, sources, doutput))

        if kernel.max_rise is None:
            return in_chunks()
        return tf.cond(tf.reduce_any(lost), exactly, in_chunks)

    inputs = query, key, value
    found = _by_examples(
        _at_once(kernel, query, key),
        gradients,
        (mask, *inputs, output, log_sums, lost, doutput),
        [(x.dtype, sizes(x)[1:]) for x in inputs],
        [tf.zeros_like(x) for x in (gain, *kernel.trained)],
    )
    pairs = zip(found, inputs)
    return *(tf.ensure_shape(x, y.shape) for x, y in pairs), *found[3:]


def _in_two(kernel, window, chunk_size, mask, query, key, value, gain):
    visible = Visibility(mask)
    inputs = query, key, value, window, gain
    return both_sides.attend(kernel, visible, *inputs, chunk_size)


def _at_once(kernel, query, key):
    """Number of examples to compute at once; `None` for all."""
    usual, batch = block_sizes(), query.shape[0]
    if has_tpu() or (batch is None and usual.batch > 1):
        return None
    if batch is None:
        return 1
    tokens = min(query.shape[1] or usual.max_tokens, usual.max_tokens)
    features = tokens * key.shape[2] * kernel.num_features(key.shape[3])
    most = max(usual.features // max(features, 1), 1)
    if most >= batch:
        return None
    return next(n for n in range(most, 0, -1) if batch % n == 0)


def _by_examples(at_once, function, tensors, shapes, totals=()):
    """A function of some examples at a time.

    Args:
        at_once: int that divides the batch size, or `None` for all examples.
        function: of tensors or `None`; returns a tuple of tensors of its examples, and
            others.
        tensors: of all examples, or `None`.
        shapes: the dtype and the shape of an example of each that it returns first.
        totals: zeros, to which the others are added.

    Returns:
        A tuple of tensors of all examples, and the totals.
    """
    if at_once is None:
        return function(*tensors)
    batch = next(size(x, 0) for x in tensors if x is not None)
    count = batch // at_once

    def some(x, i):
        start = [i * at_once, *[0] * (len(x.shape) - 1)]
        return tf.slice(x, start, [at_once, *sizes(x)[1:]])

    def step(i, arrays, totals):
        found = function(*(x if x is None else some(x, i) for x in tensors))
        arrays = [array.write(i, x) for array, x in zip(arrays, found)]
        return i + 1, arrays, each(tf.add, totals, found[len(shapes) :])

    arrays = [new_array(dtype, count, (at_once, *shape)) for dtype, shape in shapes]
    _, arrays, totals = tf.while_loop(
        lambda i, *_: i < count,
        step,
        (tf.constant(0), arrays, tuple(totals)),
        parallel_iterations=1,
    )
    found = (
        tf.reshape(array.stack(), (batch, *shape))
        for array, (_, shape) in zip(arrays, shapes)
    )
    return *found, *totals
