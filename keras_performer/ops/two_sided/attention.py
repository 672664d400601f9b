"""Attention with an exact window to both sides.

Near and far keys come from the loops over chunks. Where these lose far weights, far keys
come token after token, and near ones from the loops of local attention.
"""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.local import loops as local
from keras_performer.ops.local.recent import reach_within
from keras_performer.ops.tapes import unrecorded
from keras_performer.ops.two_sided.loops import TwoSided
from keras_performer.ops.two_sided.tokens import FarTokens
from keras_performer.ops.visibility import mask_or_all


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

    @tf.custom_gradient
    def attention(query, key, value, gain, *trained):
        inputs = kernel.with_trained(trained), window, chunk_size, mask
        inputs = *inputs, query, key, value, gain
        output, *saved = compile.call(_forward, *inputs, jit_compile=jit_compile)

        def gradient(doutput):
            ends = output, *saved, doutput
            return compile.call(_backward, *inputs, *ends, jit_compile=jit_compile)

        return output, gradient

    return attention(query, key, value, gain, *kernel.trained)


def _forward(kernel, window, chunk_size, mask, query, key, value, gain):
    """The output, log-sums, whether weights were lost, and what else is kept."""
    inputs = query, key, value
    loops = TwoSided(kernel, *inputs, mask, gain, window, chunk_size)
    output, log_sums, lost, saved = loops.forward(*inputs)

    def token_by_token():
        near = local.forward_pass(None, *_near(window, mask, *inputs))
        return FarTokens(kernel, *inputs, mask, gain, window).forward(*near)

    if kernel.max_rise is not None:
        output, log_sums = tf.cond(
            lost, unrecorded(token_by_token), lambda: (output, log_sums)
        )
    return output, log_sums, lost, saved


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
    saved,
    doutput,
):
    """Gradients of query, key, value, gain, and what of the kernel trains."""
    inputs = query, key, value

    def in_chunks():
        loops = TwoSided(kernel, *inputs, mask, gain, window, chunk_size)
        return loops.backward(*inputs, output, log_sums, saved, doutput)

    def token_by_token():
        near = _near(window, mask, *inputs)
        *near, _ = local.backward_pass(None, *near, output, log_sums, doutput, None)
        far = FarTokens(kernel, *inputs, mask, gain, window)
        found = far.backward(output, log_sums, doutput, near)
        return *(tf.cast(x, y.dtype) for x, y in zip(found, inputs)), *found[3:]

    if kernel.max_rise is None:
        return in_chunks()
    return tf.cond(lost, token_by_token, in_chunks)


def _near(window, mask, query, key, value):
    """What the loops of local attention take."""
    options = reach_within(window, query, None), 0, window, False, None
    return options, query, key, value, mask_or_all(mask, key)
