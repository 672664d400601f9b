"""Causal attention, in time and memory linear in the length."""

import typing

import tensorflow as tf

from keras_performer.ops import compile, decays
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_chunk_size,
    check_decay,
    check_no_window,
    check_state,
)
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.linear.loops import Causal
from keras_performer.ops.linear.reach import Reach
from keras_performer.ops.linear.step import one_token
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.shapes import TensorLike, compute_dtype, size
from keras_performer.ops.state import State, initial_state
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
    decay: TensorLike | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, State]:
    """Computes attention of every query to the keys up to its own position.

    A loop over chunks of tokens carries the state: for every feature, the running
    maximum of the log-features of keys, and the sums of values weighted by that
    feature. No output depends on a later key, not even through a stabilizer or an
    epsilon.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`. N is a multiple of K; the query head n
            attends to the key-value head `n // (N // K)`.
        value: tensor of shape `(B, T, K, V)`.
        kernel: as in `bidirectional_attention`.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible keys; or a
            `Visibility`. Defaults to `None`.
        state: the state after earlier tokens, from `initial_state` or an earlier
            call, with `decay` in both calls or in none. Defaults to no earlier tokens.
        chunk_size: int, the largest number of tokens processed at once. It changes
            speed and rounding only. `None` chooses a size for the device. Defaults to
            `None`.
        decay: optional tensor of shape `(B, T, K)`, the logarithm of each token's gate,
            at most 0. A gate multiplies the weights of all earlier keys; a logarithm of
            -1e30 or less hides them. Defaults to `None`.
        jit_compile: as in `bidirectional_attention`. Defaults to `False`.

    Returns:
        `(output, state)`: a tensor of shape `(B, T, N, V)` in the dtype of `query`, 0
        where no key is visible; and the state after the last token,
        `State(running_max, sums)` of shapes `(B, K, M)` and `(B, K, V + 1, M)`, float32
        (float64 for float64 inputs).

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
    decay = check_decay(decay, query, key, value)
    arguments = visible, query, key, value, start, decay, chunk_size, jit_compile
    return compile.call_in_graph(attend, kernel, *arguments, jit_compile=jit_compile)


def kernel_and_state(query, key, value, kernel, state):
    """Returns the kernel in the dtype of the loops, and their initial state."""
    dtype = compute_dtype(query, key, value)
    features = kernel.num_features(key.shape[3])
    start = initial_state(size(key, 0), key.shape[2], features, size(value, 3), dtype)
    if state is not None:
        check_state(state, start)
        start = State(*state)
    kernel.check_heads(key.shape[2])
    return kernel.astype(dtype), start


def attend(kernel, visible, query, key, value, state, decay, chunk_size, jit_compile):
    """Computes `causal_attention` of checked arguments."""
    keys = Recent(key, value, visible.key_mask, decay)
    options = visible.starts, chunk_size, jit_compile
    found = attend_within(kernel, Reach(), query, keys, None, state, *options)
    return tf.cast(found.output, query.dtype), found.state


class Found(typing.NamedTuple):
    """Results for some of the keys, which can be joined with results for others.

    Attributes:
        output: weighted means of values, `(B, T, N, V)`, float32 or float64.
        log_sums: logarithms of the absolute sums of weights, `(B, T, N, 1)`, or `None`.
            Without a gain they omit a factor common to all keys of a query.
        signs: signs of the sums of weights, `(B, T, N, 1)`; `None` with a gain, where
            all are positive, and without log-sums.
        state: the `State` after the far keys of the last query.
    """

    output: tf.Tensor
    log_sums: tf.Tensor | None
    signs: tf.Tensor | None
    state: State


def attend_within(
    kernel,
    reach,
    query,
    keys,
    gain,
    state,
    starts,
    chunk_size,
    jit_compile,
):
    """Computes causal attention to near and far keys.

    Args:
        kernel: a `Kernel` in the dtype of the loops.
        reach: a `Reach`.
        query: tensor `(B, T, N, H)`.
        keys: `Recent`: `reach.before` keys of a state, then a key for each query.
            `seen` may be `None`. With a bidirectional reach, masks, decays, state and
            results include reversed sequences; queries, keys and values do not.
        gain: tensor `(N, 1)`, the log-gain of far weights; `None` for 0, if no key is
            near.
        state: `State` before the far key of the first query.
        starts: as in `Visibility`, for the queries.
        chunk_size, jit_compile: as in `causal_attention`.

    Returns:
        `Found`. Without a gain, the log-sums and signs of more than one token are
        `None` unless the reach is bidirectional.
    """
    heads = Heads(query, keys.key, keys.value)
    r, sums = heads.state_rows(state)
    r = tf.stop_gradient(r)
    masks = keys.seen, starts
    fades = _gates_and_fade(keys.decay, reach, heads.dtype)
    if query.shape[0] == 0:
        found = _of_no_examples(query, keys, gain)
    elif query.shape[1] == 1:
        inputs = reach.with_reverses(query, keys.key, keys.value)
        inputs = reach, masks, *inputs, gain, fades, r, sums
        *found, r, sums = compile.call(
            one_token, kernel, *inputs, jit_compile=jit_compile
        )
    else:
        fixed = reach, chunk_size, masks, r
        tensors = query, keys.key, keys.value, sums, gain, *fades
        output, r, sums, *logs = compile.call_with_gradient(
            _forward, _backward, kernel, fixed, tensors, jit_compile
        )
        found = output, *(*logs, None, None)[:2]
    return Found(*found, State(*heads.state(tf.stop_gradient(r), sums)))


def _gates_and_fade(decay, reach, dtype):
    """Returns log-decays of all keys and, with a delay, the fade of each query."""
    if decay is None:
        return ()
    gates = decays.gates(decay, dtype)
    found = [gates]
    if reach.delay:
        found.append(decays.over_last(gates, reach.delay)[:, reach.before :])
    return tuple(tf.expand_dims(x, -1) for x in found)


def _of_no_examples(query, keys, gain):
    """Returns empty results: TensorFlow crashes optimizing loops over no examples."""
    inputs = [x for x in (query, keys.key, keys.value, gain) if x is not None]
    # makes the results differentiable
    nothing = tf.add_n([0 * tf.reduce_sum(tf.cast(x, "float32")) for x in inputs])
    nothing = tf.cast(nothing, compute_dtype(query, keys.key, keys.value))
    shape = 0, size(query, 1), query.shape[2]
    output = tf.zeros((*shape, size(keys.value, 3)), nothing.dtype) + nothing
    return output, tf.zeros((*shape, 1), nothing.dtype), None


def _forward(kernel, fixed, tensors):
    return _loops(kernel, fixed, tensors).forward(fixed[-1], tensors[3])


def _backward(kernel, fixed, tensors, results, saved, dresults):
    return _loops(kernel, fixed, tensors).backward(results, saved, dresults)


def _loops(kernel, fixed, tensors):
    query, key, value, _, gain, *fades = tensors
    return Causal(kernel, *fixed[:-1], (query, key, value), gain, *fades)
