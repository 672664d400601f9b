"""Attention with exact weights for near keys and estimated weights for far keys.

One normalizer divides both kinds of weights. Queries 0 to W - 1 have no far key before
them; query W + i has the far keys 0 to i. In bidirectional attention the same holds for
later far keys, counted from the end.
"""

import typing

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_chunk_size,
    check_decay,
    check_no_window,
    check_window,
)
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear import bidirectional, causal
from keras_performer.ops.linear.reach import Reach
from keras_performer.ops.local import attention as local
from keras_performer.ops.local import recent
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import joined
from keras_performer.ops.segments import restarted
from keras_performer.ops.shapes import TensorLike, compute_dtype, size
from keras_performer.ops.state import State
from keras_performer.ops.visibility import Visibility


class WindowedState(typing.NamedTuple):
    """The state of causal attention with an exact window.

    Attributes:
        running_max, sums: the `State` of keys that have left the window.
        key, value, seen, decay: the `Recent` keys in the window. With a forget gate,
            sums are decayed up to their newest key.
    """

    running_max: tf.Tensor
    sums: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    seen: tf.Tensor
    decay: tf.Tensor | None = None


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
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, WindowedState | None]:
    """Computes attention with exact weights for near keys, estimated for far keys.

    A near key has the weight exp(q . k / sqrt(H)), a far key the weight
    exp(log_gain) phi(q) . phi(k). Each query's weights are divided by their sum. Key j
    is near query i if `|i - j| < exact_window`; masked tokens count in the distance.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        kernel: a `Kernel` that estimates exp(q . k / sqrt(H)).
        exact_window: int W.
        log_gain: tensor of shape `(N,)`. Defaults to `None`, which means 0.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`, which also says whether attention is causal. Defaults to
            `None`.
        state: the state after earlier tokens (causal only). Defaults to `None`.
        chunk_size: as in `causal_attention`. Defaults to `None`.
        decay: as in `causal_attention` and `bidirectional_attention`, for near and far
            keys. Defaults to `None`.
        jit_compile: as in `bidirectional_attention`. Defaults to `False`.

    Returns:
        `(output, state)`: a tensor of shape `(B, T, N, V)` in the dtype of `query`, 0
        where no key is visible; and the state after the last token, `None` unless
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
    if chunk_size is not None:
        check_chunk_size(chunk_size)
    decay = check_decay(decay, query, key, value)
    far, near = (None, None) if state is None else far_and_near(state)
    keys = Recent.of(key, value, visible.key_mask, decay)
    recent.check_recent(near, exact_window, keys, visible)
    kernel, far = causal.kernel_and_state(query, key, value, kernel, far)
    dtype = compute_dtype(query, key, value)
    gain = tf.zeros((query.shape[2],)) if log_gain is None else log_gain
    gain = tf.cast(gain, dtype)[:, tf.newaxis]
    options = exact_window, chunk_size, jit_compile
    arguments = query, keys, visible, gain, far, near, options
    output, *state = compile.call_in_graph(
        attend, kernel, *arguments, jit_compile=jit_compile
    )
    return tf.cast(output, query.dtype), WindowedState(*state) if state else None


def linear_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    visible: Visibility,
    exact_window: int | None = None,
    log_gain: TensorLike | None = None,
    state: typing.Any = None,
    chunk_size: int | None = None,
    *,
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, typing.Any]:
    """Calls the windowed, causal or bidirectional attention that the arguments need.

    Arguments and results are as there. `visible` says whether attention is causal,
    `exact_window` is `None` for no window, and the returned state is `None` unless
    causal.
    """
    inputs = query, key, value, kernel
    options: dict[str, typing.Any] = {
        "chunk_size": chunk_size,
        "decay": decay,
        "jit_compile": jit_compile,
    }
    if exact_window is not None:
        given = exact_window, log_gain, visible, state
        return windowed_attention(*inputs, *given, **options)
    if visible.causal:
        return causal.causal_attention(*inputs, visible, state, **options)
    return bidirectional.bidirectional_attention(*inputs, visible, **options), None


def attend_to_earlier(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    exact_window: int,
    log_gain: TensorLike,
    key_mask: TensorLike | None,
    state: WindowedState,
    chunk_size: int | None = None,
    *,
    own_key: bool = True,
) -> tuple[tf.Tensor, tf.Tensor, WindowedState]:
    """Attends to earlier keys and each query's own key, with an exact window.

    Args:
        query, key, value, kernel, exact_window, log_gain: as in `windowed_attention`.
        key_mask: bool tensor of shape `(B, T)`, true for visible keys, or `None`.
        state: from `with_recent_keys`, or after the previous piece.
        chunk_size: as in `causal_attention`. Defaults to `None`.
        own_key: bool, whether a query sees the key of its own token. Defaults to
            `True`.

    Returns:
        `(output, log_sums, state)`: the weighted average of values, `(B, T, N, V)`; the
        logarithm of the sum of weights, `(B, T, N, 1)`; and the state for the next
        piece. The first two are inputs of `join_parts`, float32, or float64 for float64
        inputs.
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask, causal=True)
    check_attention_inputs(query, key, value, visible)
    check_window("exact_window", exact_window, query, key)
    far, near = far_and_near(state)
    keys = Recent.of(key, value, visible.key_mask)
    recent.check_recent(near, exact_window, keys, visible)
    kernel, far = causal.kernel_and_state(query, key, value, kernel, far)
    gain = tf.cast(log_gain, compute_dtype(query, key, value))[:, tf.newaxis]
    options = exact_window, chunk_size, False
    arguments = query, keys, gain, far, near, options, own_key
    output, log_sums, *later = attend_with_state(kernel, *arguments)
    return output, log_sums, WindowedState(*later)


def join_parts(
    first: tuple[tf.Tensor, tf.Tensor], second: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins attention to two sets of keys.

    Args:
        first, second: `(output, log_sums)` for the same queries, such as results of
            `attend_to_earlier` for a sequence, and with `own_key=False` for the
            reversed sequence.

    Returns:
        `(output, log_sums)`, of the same shapes.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 6, 1, 2), seed=(0, 2))
    >>> state = ops.with_recent_keys(ops.initial_state(1, 1, 8, 2), 2, key_dim=2)
    >>> given = kernel, 2, tf.zeros(1), None, state
    >>> *earlier, _ = attend_to_earlier(x, x, x, *given)
    >>> y = x[:, ::-1]
    >>> output, logs, _ = attend_to_earlier(y, y, y, *given, own_key=False)
    >>> both, _ = join_parts(earlier, (output[:, ::-1], logs[:, ::-1]))
    >>> whole, _ = ops.windowed_attention(x, x, x, kernel, exact_window=2)
    >>> bool(tf.reduce_max(abs(both - whole)) < 1e-5)
    True
    """
    return joined([first, second])


def with_recent_keys(
    state: State,
    exact_window: int,
    key_dim: int,
    dtype: str | tf.DType = "float32",
    with_decay: bool = False,
) -> WindowedState:
    """Returns the state of `windowed_attention` before the first token.

    Args:
        state: from `initial_state`.
        exact_window: int W.
        key_dim: int H.
        dtype: the dtype of keys and values. Defaults to `"float32"`.
        with_decay: bool, whether you will pass `decay`. Defaults to `False`.

    Returns:
        `WindowedState`; its keys and values have the shapes `(B, W, K, H)` and `(B, W,
        K, V)`.
    """
    batch_size, num_heads = size(state.sums, 0), state.sums.shape[1]
    shape = batch_size, exact_window, num_heads, key_dim, size(state.sums, 2) - 1
    return WindowedState(*state, *Recent.empty(*shape, dtype, with_decay))


def attend(kernel, query, keys, visible, gain, far, near, options):
    """Computes `windowed_attention` for checked arguments; `keys` are `Recent`."""
    window, chunk_size, jit_compile = options
    starts, length = visible.starts, size(query, 1)
    all_near = near is None and isinstance(length, int) and window >= length
    if all_near:
        seen = window, visible.causal, jit_compile, starts
        output, _ = local.attend(None, query, keys, None, *seen)
        output = _unchanged(output, gain, *kernel.trained)
    elif visible.causal:
        given = query, keys, gain, far, near, options
        output, _, *state = attend_with_state(kernel, *given, starts=starts)
        return output, *state
    else:
        given = query, keys.key, keys.value, window, gain, chunk_size
        output = bidirectional.attend_both_ways(
            kernel, visible, *given, jit_compile, keys.decay
        )
    if not visible.causal:
        return (output,)
    far = _of_last_segment(far, starts, window)
    return output, *far, *keys.last(window, None, starts)


def attend_with_state(
    kernel,
    query,
    keys,
    gain,
    far,
    near,
    options,
    own_key=True,
    starts=None,
):
    """Attends to near and far keys of the sequence and of a state.

    Args:
        keys: `Recent`, a key for each query.
        far, near: the state before these keys; `near` is `None` without one.
        own_key: bool, whether a query sees the key of its own token.
        starts: as in `Visibility`.

    Returns:
        `(output, log_sums, *state)`.
    """
    window, *others = options
    reach = Reach(window, 0 if own_key else 1, 0 if near is None else window)
    every = keys if near is None else near.followed_by(keys)
    found = causal.attend_within(
        kernel, reach, query, every, gain, far, starts, *others
    )
    far = _of_last_segment(found.state, starts, window)
    return found.output, found.log_sums, *far, *keys.last(window, near, starts)


@custom_gradient
def _unchanged(output, *unused):
    """Returns the output; `unused` get zero gradients, or optimizers would warn."""
    return tf.identity(output), lambda d: (d, *map(tf.zeros_like, unused))


def _of_last_segment(far, starts, window):
    """Empties the state of far keys where a segment starts in the last W tokens.

    All far keys are then in earlier segments, which no later token sees.
    """
    if starts is None:
        return far
    restarts = tf.reduce_any(starts[:, -window:], 1)[:, tf.newaxis, tf.newaxis]
    r = far.running_max[:, :, tf.newaxis]
    r, sums = restarted(restarts[..., tf.newaxis], r, far.sums)
    return State(r[:, :, 0], sums)


def far_and_near(state):
    """Splits a state into `State` of far keys and `Recent` keys in the window."""
    is_right = isinstance(state, (tuple, list)) and len(state) in (5, 6)
    if not is_right:
        raise ValueError(
            f"state must be a WindowedState ({', '.join(WindowedState._fields)}), from "
            "with_recent_keys or an earlier call. Received: state of type "
            f"{type(state).__name__}"
        )
    return State(*state[:2]), Recent(*state[2:])
