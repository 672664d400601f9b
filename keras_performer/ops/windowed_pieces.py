"""Bidirectional attention with an exact window, for a sequence in pieces.

A query sees the keys up to its own, and the keys after it. Each part is causal, the
second over the reversed sequence, so a state goes from piece to piece.
"""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.checks import check_attention_inputs, check_window
from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear import causal
from keras_performer.ops.local import recent
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import joined
from keras_performer.ops.shapes import compute_dtype
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility
from keras_performer.ops.windowed import WindowedState, attend_with_state, far_and_near


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
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, WindowedState]:
    """Attends to the keys up to a query's own, with an exact window.

    Args:
        query, key, value, kernel, exact_window, log_gain: as in `windowed_attention`.
        key_mask: bool tensor of shape `(B, T)`, true for visible keys, or `None`.
        state: from `with_recent_keys`, or after the previous piece.
        chunk_size: as in `causal_attention`. Defaults to `None`.
        own_key: bool, whether a query sees the key of its own token. Defaults to
            `True`.
        jit_compile: as in `bidirectional_attention`. Defaults to `False`.

    Returns:
        `(output, log_sums, state)`: the weighted average of values, `(B, T, N, V)`; the
        logarithm of the sum of weights, `(B, T, N, 1)`, float32 or for float64 inputs
        float64; both for `join_parts`; and the state for the next piece.
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    visible = Visibility.of(key_mask, causal=True)
    check_attention_inputs(query, key, value, visible)
    check_window("exact_window", exact_window, query, key)
    far, near = far_and_near(state)
    recent.check_recent(near, exact_window, key, value, visible)
    kernel, far = causal.kernel_and_state(query, key, value, kernel, far)
    gain = tf.cast(log_gain, compute_dtype(query, key, value))[:, tf.newaxis]
    options = exact_window, chunk_size, jit_compile
    arguments = query, key, value, visible.key_mask, gain, far, near, own_key, options
    if jit_compile and tf.executing_eagerly():
        output, log_sums, *later = compile.call_in_graph(_attend, kernel, *arguments)
    else:
        output, log_sums, *later = _attend(kernel, *arguments)
    return output, log_sums, WindowedState(*later)


def join_parts(
    first: tuple[tf.Tensor, tf.Tensor], second: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins attention to two sets of keys.

    Args:
        first, second: `(output, log_sums)` for the same queries, such as those from
            `attend_to_earlier` for a sequence, and with `own_key=False` for the
            reversed one.

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


def _attend(kernel, query, key, value, key_mask, gain, far, near, own_key, options):
    """`attend_to_earlier` of checked arguments."""
    keys = Recent.of(key, value, key_mask)
    return attend_with_state(kernel, query, keys, gain, far, near, options, own_key)
