"""Attention to the past, in time and memory linear in the length."""

import functools

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_chunk_size,
    check_no_window,
    check_state,
)
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear.causal_loops import (
    backward_pass,
    forward_pass,
    sums_of_weights,
)
from keras_performer.ops.linear.causal_step import one_token
from keras_performer.ops.segments import first_starts, restarted
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.state import State, initial_state
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


def causal_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None = None,
    state: State | tuple[tf.Tensor, tf.Tensor] | None = None,
    chunk_size: int | None = None,
    *,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, State]:
    """Attention of every query to the keys up to its own position.

    A loop over blocks of tokens carries the state: for every feature the running
    maximum of its key log-features, and the sums of values weighted by that feature.
    No output depends on a later key, also not through a stabilizer or an epsilon.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`. N is a multiple of K; the query head n
            attends to the key-value head `n // (N // K)`.
        value: tensor of shape `(B, T, K, V)`.
        kernel: as in `bidirectional_attention`.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`.
        state: the state after earlier tokens, from `initial_state` or an earlier
            call. Defaults to no earlier tokens.
        chunk_size: int, the most tokens in a chunk. Changes speed and rounding only.
        jit_compile: as in `bidirectional_attention`.

    Returns:
        `(output, state)`: a tensor of shape `(B, T, N, V)` in the dtype of `query`, 0
        where no key is visible, and the state after the last token, `State(running_max,
        sums)` of shapes `(B, K, M)` and `(B, K, V + 1, M)`, float32 (float64 for
        float64 inputs).

    Reference:
        arXiv 2009.14794, section 2.2 and appendix B.1 (prefix sums).

    Example:

    >>> from keras_performer import ops
    >>> matrix = ops.orthogonal_gaussian_matrix(8, 2, seed=(0, 1))
    >>> kernel = ops.ExponentialKernel(matrix)
    >>> x = tf.random.stateless_normal((1, 5, 1, 2), seed=(0, 2))
    >>> whole, _ = causal_attention(x, x, x, kernel)
    >>> _, state = causal_attention(x[:, :4], x[:, :4], x[:, :4], kernel)
    >>> last, _ = causal_attention(x[:, 4:], x[:, 4:], x[:, 4:], kernel, state=state)
    >>> bool(tf.reduce_all(tf.abs(last - whole[:, 4:]) < 1e-5))
    True
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask, causal=True)
    check_attention_inputs(query, key, value, visible)
    check_no_window(visible)
    if not query.shape[:2].is_compatible_with(key.shape[:2]):
        raise ValueError(
            "Causal attention needs one key for each query. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    if chunk_size is not None:
        check_chunk_size(chunk_size)
    kernel, start = kernel_and_state(query, key, value, kernel, state)
    arguments = visible, query, key, value, start, chunk_size, jit_compile
    if jit_compile and tf.executing_eagerly():
        output, later = compile.call_in_graph(attend, kernel, *arguments)
    else:
        output, later = attend(kernel, *arguments)
    return output, later


def kernel_and_state(query, key, value, kernel, state):
    """The kernel in the dtype of the loops, and the state that they start from."""
    dtype = compute_dtype(query, key, value)
    features = kernel.num_features(key.shape[3])
    start = initial_state(size(key, 0), key.shape[2], features, size(value, 3), dtype)
    if state is not None:
        check_state(state, start)
        start = State(*state)
    kernel.check_heads(key.shape[2])
    return kernel.astype(dtype), start


def attend(kernel, visible, query, key, value, state, chunk_size, jit_compile=False):
    """`causal_attention` of checked arguments."""
    heads = Heads(query, key, value)
    rows = _start(heads, visible, state)
    call = functools.partial(compile.call, jit_compile=jit_compile)
    if query.shape[1] == 1:
        inputs = kernel, visible.key_mask, query, key, value
        output, _, r, sums = call(one_token, *inputs, *rows)
    else:
        inputs = kernel, visible, chunk_size, query, key, value
        output, r, sums = _many_tokens(call, *inputs, *rows)
    return output, State(*heads.state(tf.stop_gradient(r), sums))


def attend_in_part(kernel, visible, query, key, value, jit_compile=False):
    """Attention to some of the keys, to be joined with that to others.

    Returns:
        `(output, log_sums, signs)`: weighted means `(B, T, N, V)`; of the sums of
        weights, but for a factor that all keys of a query have in common, the
        logarithms of their sizes and their signs, `(B, T, N, 1)`.
    """
    heads = Heads(query, key, value)
    kernel, state = kernel_and_state(query, key, value, kernel, None)
    rows = _start(heads, visible, state)
    call = functools.partial(compile.call, jit_compile=jit_compile)
    inputs = kernel, visible, None, query, key, value
    return _many_tokens(call, *inputs, *rows, in_part=True)[:3]


def _start(heads, visible, state):
    """The state that the first token sees, as rows."""
    r, sums = heads.state_rows(state)
    if visible.starts is not None:
        first = tf.repeat(first_starts(visible.starts), heads.num_key_value_heads)
        (r,), (sums,) = restarted(first[:, tf.newaxis, tf.newaxis], (r,), (sums,))
    return tf.stop_gradient(r), sums


def _many_tokens(
    call,
    kernel,
    visible,
    chunk_size,
    query,
    key,
    value,
    r_start,
    sums_start,
    in_part=False,
):
    """The loops with their own gradient.

    Args:
        call: `compile.call`, with its choice.
        in_part: bool, whether the output is not rounded, and logarithms of the sizes of
            the sums of weights and their signs come after it.
    """

    @custom_gradient
    def attention(query, key, value, sums_start, *trained):
        inputs = kernel.with_trained(trained), visible, chunk_size, query, key, value
        output, r, sums, saved = call(forward_pass, *inputs, r_start, sums_start)

        def gradient(doutput, *dothers):
            dlog_sums = dothers[0] if in_part else None
            ends = output, saved, r, doutput, dothers[-1], dlog_sums
            return call(backward_pass, *inputs, *ends)

        if in_part:
            found = output, *call(sums_of_weights, *inputs, saved)
        else:
            found = (tf.cast(output, query.dtype),)
        return (*found, r, sums), gradient

    return attention(query, key, value, sums_start, *kernel.trained)
