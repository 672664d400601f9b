"""Exact weights for near keys and estimated ones for far keys, under one normalizer.

The far keys of causal attention are those of causal attention without its first W
queries: of the others, number i sees the keys 0 to i. Attention to both sides adds the
same over the reversed sequence.
"""

import typing

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_no_window,
    check_window,
)
from keras_performer.ops.kernels.base import EMPTY, Kernel
from keras_performer.ops.linear import causal
from keras_performer.ops.local import attention as local
from keras_performer.ops.local import recent
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.segments import (
    restarted,
    reversed_starts,
    segment_numbers,
)
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.state import State
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


class WindowedState(typing.NamedTuple):
    """The state of causal attention with an exact window.

    Attributes:
        running_max, sums: the `State` of keys that no later window reaches.
        key, value, seen: the `Recent` keys, as many as the window.
    """

    running_max: tf.Tensor
    sums: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    seen: tf.Tensor


def windowed_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    exact_window: int,
    log_gain: TensorLike | None = None,
    key_mask: TensorLike | Visibility | None = None,
    state: WindowedState | None = None,
    chunk_size: int | None = None,
    *,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, WindowedState | None]:
    """Attention with exact weights for near keys, and estimated ones for the others.

    A near key has the weight exp(q . k / sqrt(H)), a far one
    exp(log_gain) phi(q) . phi(k); a query's weights are divided by their sum. Key j is
    near to query i if `|i - j| < exact_window`; masked keys count as places.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        kernel: a `Kernel` that estimates exp(q . k / sqrt(H)).
        exact_window: int W.
        log_gain: tensor of shape `(N,)`; 0 if not given.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`, which also says whether later keys are hidden.
        state: causal only: the state after earlier tokens. Defaults to none.
        chunk_size: as in `causal_attention`.
        jit_compile: as in `bidirectional_attention`.

    Returns:
        `(output, state)`: a tensor of shape `(B, T, N, V)` in the dtype of `query`, 0
        where no key is visible, and the state after the last token; `None` unless
        causal.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 9, 1, 2), seed=(0, 2))
    >>> output, _ = windowed_attention(x, x, x, kernel, exact_window=9)
    >>> bool(tf.reduce_max(abs(output - ops.exact_attention(x, x, x))) < 1e-5)
    True
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask)
    check_attention_inputs(query, key, value, visible)
    check_no_window(visible)
    check_window("exact_window", exact_window, query, key)
    far, near = (None, None) if state is None else far_and_near(state)
    recent.check_recent(near, exact_window, key, value, visible)
    kernel, far = causal.kernel_and_state(query, key, value, kernel, far)
    dtype = compute_dtype(query, key, value)
    gain = tf.zeros((query.shape[2],)) if log_gain is None else log_gain
    gain = tf.cast(gain, dtype)[:, tf.newaxis]
    options = exact_window, chunk_size, jit_compile
    masks = visible.key_mask, visible.starts
    arguments = query, key, value, *masks, gain, far, near, options
    attend = attend_causal if visible.causal else attend_both_ways
    if jit_compile and tf.executing_eagerly():
        output, *state = compile.call_in_graph(attend, kernel, *arguments)
    else:
        output, *state = attend(kernel, *arguments)
    return tf.cast(output, query.dtype), WindowedState(*state) if state else None


def with_recent_keys(
    state: State, exact_window: int, key_dim: int, dtype: str | tf.DType = "float32"
) -> WindowedState:
    """The state of `windowed_attention` before the first token.

    Args:
        state: from `initial_state`.
        exact_window: int W.
        key_dim: int H.
        dtype: of keys and values.

    Returns:
        `WindowedState`; its keys and values are of shapes `(B, W, K, H)` and
        `(B, W, K, V)`.
    """
    batch_size, num_heads = size(state.sums, 0), state.sums.shape[1]
    shape = batch_size, exact_window, num_heads, key_dim, size(state.sums, 2) - 1
    return WindowedState(*state, *Recent.empty(*shape, dtype))


def attend_causal(
    kernel, query, key, value, key_mask, starts, gain, far, near, options
):
    """`windowed_attention` to earlier keys."""
    window, _, jit_compile = options
    keys = Recent.of(key, value, key_mask)
    if near is not None:
        given = kernel, query, keys, gain, far, near, options
        parts, far = parts_with_state(*given, starts=starts)
        far = _of_last_segment(far, starts, window)
        return joined(parts), *far, *keys.last(window, near, starts)
    parts = [local.attend(None, query, keys, None, window, True, jit_compile, starts)]
    if not _sees_all(window, size(query, 1)):
        given = key, value, key_mask, gain, far, window, options, starts
        further, far = far_part(kernel, query, *given)
        far = _of_last_segment(far, starts, window)
        parts.append(further)
    return joined(parts), *far, *keys.last(window, None, starts)


def parts_with_state(
    kernel, query, keys, gain, far, near, options, own_key=True, starts=None
):
    """What earlier keys add, with those of a state: near ones, and far ones.

    Args:
        keys: `Recent`, a key for each query.
        far, near: the state before them.
        own_key: bool, whether a query sees the key of its own place. With segments it
            does.
        starts: as in `Visibility`.

    Returns:
        `(parts, far)`, see `joined`.
    """
    window, _, jit_compile = options
    every = near.followed_by(keys)
    further, far = far_part(kernel, query, *every, gain, far, 0, options, starts)
    if not own_key:
        # a query stands one place further then, in a window that is one shorter
        window -= 1
        near, keys = every.between(0, window), every.between(window, -1)
    if not window:
        return [further], far
    exact = local.attend(None, query, keys, near, window, True, jit_compile, starts)
    return [exact, further], far


def attend_both_ways(
    kernel, query, key, value, key_mask, starts, gain, far, near, options
):
    """`windowed_attention` to all keys; `far` is the state before any, `near` none."""
    window, _, jit_compile = options
    keys = Recent.of(key, value, key_mask)
    parts = [local.attend(None, query, keys, near, window, False, jit_compile, starts)]
    if not _sees_all(window, size(query, 1)):
        turned = None if starts is None else reversed_starts(starts)
        for turn, first in (_as_it_is, starts), (_reversed, turned):
            given = [turn(x) for x in (query, key, value, key_mask)]
            further, _ = far_part(kernel, *given, gain, far, window, options, first)
            parts.append([turn(x) for x in further])
    return (joined(parts),)


def far_part(
    kernel, query, key, value, key_mask, gain, state, skipped, options, starts=None
):
    """What earlier keys out of the window add.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key, value, key_mask: keys from the first that the first query with a far key
            sees, in order, and maybe more; `key_mask` may be `None`.
        gain: tensor `(N, 1)`.
        state: `State` before these keys.
        skipped: int, how many of the first queries have no far key.
        options: `(exact_window, chunk_size, jit_compile)`.
        starts: as in `Visibility`, of the queries.

    Returns:
        `((output, log_sums), state)`, see `joined`.
    """
    window, chunk_size, jit_compile = options
    late = query[:, skipped:]
    count = size(late, 1)
    key, value, key_mask = (
        None if x is None else x[:, :count] for x in (key, value, key_mask)
    )
    key_starts = None
    if starts is not None:
        # the first key stands a window before the first query that is not skipped
        key_starts = tf.pad(starts, [[0, 0], [window - skipped, 0]])[:, :count]
    output, log_sums, state = causal.attend(
        kernel,
        Visibility(key_mask, causal=True, starts=key_starts),
        late,
        key,
        value,
        state,
        chunk_size,
        jit_compile,
        with_log_sums=True,
    )
    if starts is not None:
        own = segment_numbers(starts)[:, skipped:] == segment_numbers(key_starts)
        own = own[..., tf.newaxis, tf.newaxis]
        output = tf.where(own, output, tf.zeros_like(output))
        log_sums = tf.where(own, log_sums, tf.constant(EMPTY, log_sums.dtype))
    first = [[0, 0], [size(query, 1) - count, 0], [0, 0], [0, 0]]
    log_sums = tf.pad(log_sums + gain, first, constant_values=EMPTY)
    return (tf.pad(output, first), log_sums), state


def _of_last_segment(far, starts, window):
    """The state of far keys, of none where the last token's segment has near ones only.

    No later token sees the keys of other segments.
    """
    if starts is None:
        return far
    restarts = tf.reduce_any(starts[:, -window:], 1)[:, tf.newaxis, tf.newaxis]
    r = (far.running_max[:, :, tf.newaxis],)
    (r,), (sums,) = restarted(restarts[..., tf.newaxis], r, (far.sums,))
    return State(r[:, :, 0], sums)


def joined(parts):
    """The weighted means of sets of keys as one weighted mean of them all.

    Args:
        parts: list of `(output, log_sums)`, `(B, T, N, V)` and `(B, T, N, 1)`: weighted
            means of values, and the logarithms of the sums of their weights.
    """
    outputs, logs = zip(*parts)
    if len(outputs) == 1:
        return outputs[0]
    shares = tf.nn.softmax(tf.concat(logs, -1))
    return tf.add_n(
        [output * shares[..., i : i + 1] for i, output in enumerate(outputs)]
    )


def far_and_near(state):
    """The two parts of a `WindowedState`: what left the window, and what is in it."""
    names = WindowedState._fields
    if not isinstance(state, (tuple, list)) or len(state) != len(names):
        raise ValueError(
            f"state must be a WindowedState ({', '.join(names)}), from "
            "with_recent_keys or an earlier call. Received: state of type "
            f"{type(state).__name__}"
        )
    return State(*state[:2]), Recent(*state[2:])


def _sees_all(window, length):
    return isinstance(length, int) and window >= length


def _as_it_is(x):
    return x


def _reversed(x):
    return None if x is None else tf.reverse(x, [1])
