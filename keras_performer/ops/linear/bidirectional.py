"""Bidirectional attention, in time and memory linear in the length."""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_chunk_size,
    check_decay,
    check_no_window,
    check_not_causal,
)
from keras_performer.ops.kernels.base import EMPTY, Kernel
from keras_performer.ops.linear.causal import attend_within
from keras_performer.ops.linear.reach import Reach
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.shapes import TensorLike, compute_dtype, size
from keras_performer.ops.state import State, absorb, answer, initial_state
from keras_performer.ops.visibility import Visibility, mask_or_all


def bidirectional_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None = None,
    chunk_size: int | None = None,
    *,
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tf.Tensor:
    """Computes attention of every query to every key, through features of a kernel.

    For the exponential kernel this equals two softmaxes, over the keys for each feature
    and over the features for each query, so no epsilon is needed.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`. N is a multiple of K; the query head n
            attends to the key-value head `n // (N // K)`.
        value: tensor of shape `(B, S, K, V)`.
        kernel: a `Kernel`, such as `ExponentialKernel` or `ActivationKernel`. Its
            parameters get gradients only if it is made with `trainable=True`.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys; or a
            `Visibility`. Segments cost about twice the arithmetic, because earlier and
            later keys need a causal loop each. Defaults to `None`.
        chunk_size: as in `causal_attention`, for segments and `decay`. Defaults to
            `None`.
        decay: optional tensor of shape `(B, T, K)`, the logarithm of each token's gate,
            at most 0, as in `causal_attention`. The weight of an earlier key is
            multiplied by the gates after the key up to the query, the weight of a later
            key by the gates after the query up to the key. Needs as many queries as
            keys, and costs as much as segments. Defaults to `None`.
        jit_compile: bool, whether XLA compiles the forward and backward passes, which
            takes seconds for each shape. Defaults to `False`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 where no key is
        visible. Sums are float32, or float64 for float64 inputs.

    Reference:
        arXiv 2009.14794, section 2.2, equations 4-5 (linear attention) and Lemma 1.

    Example:

    >>> from keras_performer import ops
    >>> matrix = ops.orthogonal_gaussian_matrix(8, 2, seed=(0, 1))
    >>> kernel = ops.ExponentialKernel(matrix)
    >>> x = tf.random.stateless_normal((1, 5, 1, 2), seed=(0, 2))
    >>> output = bidirectional_attention(x, x, tf.ones((1, 5, 1, 3)), kernel)
    >>> bool(tf.reduce_all(tf.abs(output - 1) < 1e-6))
    True
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask)
    check_attention_inputs(query, key, value, visible)
    check_no_window(visible)
    check_not_causal("bidirectional_attention", visible)
    if chunk_size is not None:
        check_chunk_size(chunk_size)
    kernel.check_heads(key.shape[2])
    kernel = kernel.astype(compute_dtype(query, key, value))
    decay = check_decay(decay, query, key, value)
    arguments = visible, query, key, value, decay, chunk_size, jit_compile
    output = compile.call_in_graph(attend, kernel, *arguments, jit_compile=jit_compile)
    return tf.cast(output, query.dtype)


def attend(kernel, visible, query, key, value, decay, chunk_size, jit_compile):
    """Computes `bidirectional_attention` of checked arguments."""
    if visible.starts is None and decay is None:
        state = absorb(kernel, key, value, visible.key_mask, jit_compile=jit_compile)
        return answer(kernel, query, state, jit_compile)
    options = {"chunk_size": chunk_size, "jit": jit_compile, "decay": decay}
    return attend_both_ways(kernel, visible, query, key, value, **options)


def attend_both_ways(
    kernel,
    visible,
    query,
    key,
    value,
    window=0,
    gain=None,
    chunk_size=None,
    jit=False,
    decay=None,
    ends=None,
):
    """Computes attention of every query to all visible keys of its segment.

    The causal loops take the sequence and its reverse as one batch, so they are traced
    and compiled once. A query sees its own key in both, each time with half the weight.

    Args:
        kernel: a `Kernel` in the dtype of the loops.
        visible: a `Visibility`.
        query, key, value: tensors, a key for each query.
        window: int, keys closer than this are near; 0 for no near keys.
        gain: tensor `(N, 1)`, the log-gain of far weights; `None` without a window.
        chunk_size: as in `causal_attention`.
        jit: bool, `jit_compile` of `causal_attention`.
        decay: log-decays of the keys, `(B, T, K)`, or `None`. Gates of the later token
            of a pair and of the tokens between decay its weight. The later token is
            the query in the sequence, and the key in its reverse.
        ends: for a slice of a sequence `(reversed inputs, left, right)`: the result of
            `reversed_inputs`, and `Earlier` of the slice and of its reverse.

    Returns:
        Tensor `(B, T, N, V)` in the dtype of the loops.
    """
    reach = Reach(window, bidirectional=True)
    if ends is None:
        back, left, right = reversed_inputs(visible, decay), None, None
        features = kernel.num_features(key.shape[3])
        shape = 2 * size(key, 0), key.shape[2], features, size(value, 3)
        state = initial_state(*shape, compute_dtype(query, key, value))
    else:
        back, left, right = ends
        state = State(*(tf.concat(x, 0) for x in zip(left.far, right.far)))
    forth = visible.key_mask, visible.starts, decay
    mask, starts, decay = (
        None if x is None else tf.concat([x, y], 0) for x, y in zip(forth, back)
    )
    if left is not None and left.near is not None:
        reach = reach._replace(before=window)
        mask = mask_or_all(mask, tf.concat([key, key], 0))
        near = tf.concat([left.near.seen, right.near.seen], 0)
        mask = tf.concat([near, mask], 1)
        if decay is not None:
            near = tf.concat([left.near.decay, right.near.decay], 0)
            decay = tf.concat([near, tf.cast(decay, near.dtype)], 1)
        key, value = (
            tf.concat([before, x, tf.reverse(after, [1])], 1)
            for before, x, after in zip(left.near, (key, value), right.near)
        )
    keys, options = Recent(key, value, mask, decay), (starts, chunk_size, jit)
    found = attend_within(kernel, reach, query, keys, gain, state, *options)
    signs = found.signs
    if signs is None:
        signs = tf.ones_like(found.log_sums)
    return _joined(found.output, found.log_sums, signs)


def reversed_inputs(visible, decay, after=(None, None)):
    """Returns mask, starts and log-decays of the reversed sequence.

    In the reversed sequence the key is the later token of a pair, so the gate of a
    token decays the weights of the token before it.

    Args:
        visible: a `Visibility`.
        decay: as in `attend_both_ways`.
        after: `(starts, decay)` of the token after the last one, `(B, 1, ...)`; `None`
            if there is none.
    """
    mask = visible.key_mask
    mask = None if mask is None else tf.reverse(mask, [1])
    moved = [mask]
    for x, next_one in zip((visible.starts, decay), after):
        if x is not None:
            first = tf.zeros_like(x[:, :1]) if next_one is None else next_one
            x = tf.concat([tf.cast(first, x.dtype), tf.reverse(x[:, 1:], [1])], 1)
        moved.append(x)
    return tuple(moved)


def _joined(output, log_sums, signs):
    """Joins means over sequences and over their reverses into means over all keys.

    `log_sums` are logarithms of the absolute sums of weights, which have these `signs`.
    """
    logs = _halves(log_sums)
    # keys that decays hide have log-sums, too: at most EMPTY
    seen = tf.where(logs > EMPTY, _halves(signs), tf.zeros_like(logs))
    sums = seen * tf.exp(logs - tf.stop_gradient(tf.reduce_max(logs, 0)))
    first, second = tf.unstack(tf.math.divide_no_nan(sums, tf.reduce_sum(sums, 0)))
    # so that the gradient keeps no turned copy of the output
    output *= tf.concat([first, tf.reverse(second, [1])], 0)
    return tf.reduce_sum(_halves(output), 0)


def _halves(x):
    """Splits a batch into sequences and reverses turned back, `(2, B, T, ...)`."""
    first, second = tf.split(x, 2)
    return tf.stack([first, tf.reverse(second, [1])])
