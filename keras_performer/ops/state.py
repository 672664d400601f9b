"""The state of linear attention: everything that later queries need of earlier keys.

For every feature, a state holds the largest log-feature of the keys so far, and the
sums of values, with a column of ones, weighted by the feature.

    r_m = max_j (b_jm + g_j)      sums_m = sum_j exp(b_jm + g_j - r_m) (v_j, 1)

b are log-features of keys, g their log-decays, 0 without gates. Attention to all keys
absorbs the keys in one loop and answers the queries in another.
"""

import typing

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.checks import (
    check_no_segments,
    check_no_window,
    check_not_causal,
)
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY, Kernel
from keras_performer.ops.normalizer import (
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.shapes import TensorLike, compute_dtype, size
from keras_performer.ops.visibility import Visibility, mask_or_all


class State(typing.NamedTuple):
    """The state of linear attention: sums over the keys so far.

    Attributes:
        running_max: tensor `(B, K, M)`, the largest log-feature so far. Kernels without
            a stabilizer do not change it, except with `decay`: it is then the log-scale
            of the sums.
        sums: tensor `(B, K, V + 1, M)`, sums of values and of ones, weighted by the
            features divided by `exp(running_max)`.
    """

    running_max: tf.Tensor
    sums: tf.Tensor


def initial_state(
    batch_size: int | tf.Tensor,
    num_key_value_heads: int,
    num_features: int,
    value_dim: int | tf.Tensor,
    dtype: str | tf.DType = "float32",
) -> State:
    """Returns the state before the first token.

    Args:
        batch_size: int or scalar tensor B.
        num_key_value_heads: int K.
        num_features: int M.
        value_dim: int V.
        dtype: "float32", or "float64" for float64 inputs. Defaults to `"float32"`.

    Returns:
        `State(running_max, sums)`, tensors of shapes `(B, K, M)` and `(B, K, V + 1,
        M)`.
    """
    shape = (batch_size, num_key_value_heads)
    return State(
        tf.fill((*shape, num_features), tf.constant(EMPTY, dtype)),
        tf.zeros((*shape, value_dim + 1, num_features), dtype),
    )


def absorb_keys(
    key: tf.Tensor,
    value: tf.Tensor,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None,
    state: State,
) -> State:
    """Adds keys to the state of attention; all later queries see these keys.

    `absorb_keys` and `answer_queries` compute `bidirectional_attention` in two passes
    over a sequence that comes in pieces.

    Args:
        key: tensor of shape `(B, S, K, H)`.
        value: tensor of shape `(B, S, K, V)`.
        kernel: as in `bidirectional_attention`.
        key_mask: bool tensor of shape `(B, S)`, true for visible keys, a `Visibility`,
            or `None`.
        state: from `initial_state` or from earlier keys.

    Returns:
        The `State`, of the same shapes.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 6, 1, 2), seed=(0, 2))
    >>> state = ops.initial_state(1, 1, 8, 2)
    >>> for piece in tf.split(x, 3, axis=1):
    ...     state = absorb_keys(piece, piece, kernel, None, state)
    >>> difference = answer_queries(x, kernel, state) - ops.bidirectional_attention(
    ...     x, x, x, kernel)
    >>> bool(tf.reduce_max(tf.abs(difference)) < 1e-5)
    True
    """
    visible = Visibility.of(key_mask)
    check_not_causal("absorb_keys", visible)
    check_no_window(visible)
    check_no_segments("absorb_keys", visible)
    kernel.check_heads(key.shape[2])
    kernel = kernel.astype(compute_dtype(key, value))
    return merged(State(*state), absorb(kernel, key, value, visible.key_mask))


def answer_queries(query: tf.Tensor, kernel: Kernel, state: State) -> tf.Tensor:
    """Computes attention of queries to all keys in the state.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        kernel: as in `bidirectional_attention`.
        state: from `absorb_keys`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`.
    """
    kernel.check_heads(state[0].shape[1])
    kernel = kernel.astype(compute_dtype(query))
    return tf.cast(answer(kernel, query, State(*state)), query.dtype)


def absorb(
    kernel, key, value, key_mask, logs=None, jit_compile=False, block_tokens=None
):
    """Returns the `State` of keys, in memory linear in their number.

    Arguments are as in `absorb_keys`, with the kernel in the dtype of the loop; `logs`
    are log-decays of the keys, `(B, S, K)`. Tests of small blocks set `block_tokens`.
    """
    level = None
    if logs is not None:
        logs = tf.cast(logs, compute_dtype(key, value))
        if kernel.max_rise is None:
            logs, level = _levelled(logs, key_mask)
        logs = tf.expand_dims(logs, -1)
    fixed, tensors = (block_tokens, key_mask), (key, value, logs)
    r, sums = compile.call_with_gradient(
        _absorb, _pull_keys, kernel, fixed, tensors, jit_compile
    )
    r = tf.stop_gradient(r)
    return State(r if level is None else tf.zeros_like(r) + level, sums)


def _levelled(logs, key_mask):
    """Returns log-decays minus the largest of a visible key, and the largest."""
    if key_mask is not None:
        logs = tf.where(tf.expand_dims(key_mask, -1), logs, 2 * EMPTY)
    level = tf.reduce_max(logs, 1, keepdims=True)
    level = tf.stop_gradient(tf.maximum(level, EMPTY))
    return logs - level, tf.transpose(level, (0, 2, 1))


def answer(kernel, query, state, jit_compile=False, block_tokens=None):
    """Returns attention of queries to all keys of a `State`, in memory linear in T.

    Arguments are as in `absorb`. The result, `(B, T, N, V)`, has the dtype of the loop.
    """
    fixed = block_tokens, tf.stop_gradient(state.running_max)
    tensors = query, state.sums
    (output,) = compile.call_with_gradient(
        _answer, _pull_queries, kernel, fixed, tensors, jit_compile
    )
    return output


def merged(left, right, total=None, ended=None):
    """Returns the `State` of two pieces of a sequence.

    `total` is the log-decay of the right piece, `(B, K)`. `ended`, bool `(B,)`, is true
    where a segment starts in the right piece, which hides the left.
    """
    logs = None if total is None else tf.stack([total, tf.zeros_like(total)])
    counts = None
    if ended is not None:
        counts = tf.stack([tf.logical_not(ended), tf.ones_like(ended)])[..., tf.newaxis]
    return sum_of_states(*(tf.stack(x) for x in zip(left, right)), logs, counts)


def sum_of_states(r, sums, logs=None, counts=None):
    """Adds states, stacked on a new first axis, and returns the sum as a `State`.

    `logs` are log-decays of the states, `(states, B, K)`. The bools `counts`, which
    broadcast to this shape, are false for states to leave out.
    """
    r = tf.stop_gradient(r)
    if logs is not None:
        r = tf.maximum(r + tf.expand_dims(logs, -1), EMPTY)
    if counts is not None:
        counts = tf.expand_dims(counts, -1)
        r = tf.where(counts, r, EMPTY)
    largest = tf.stop_gradient(tf.reduce_max(r, 0))
    factors = tf.exp(r - largest)
    if counts is not None:
        factors = tf.where(counts, factors, tf.zeros_like(factors))
    return State(largest, tf.reduce_sum(sums * tf.expand_dims(factors, 3), 0))


# -- The loops over blocks of keys and of queries. With the shapes of `Kernel`:
#
#     x, a, p    queries, projected queries, their features
#     y, b, e    keys, projected keys, their features
#     v          values with a column of ones
#     r, sums    stabilizer and sums
#     d...       a gradient; d alone: the gradient of the sums of a query, times its
#                normalizer


class _Keys:
    """Blocks of keys and of values, with their mask and their log-decays."""

    def __init__(self, kernel, fixed, tensors):
        (block_tokens, key_mask), (key, value, _) = fixed, tensors
        self.kernel, self.heads = kernel, Heads(key, key, value)
        self.num_features = kernel.num_features(key.shape[3])
        tokens = block_tokens or tokens_per_block(key, self.num_features)
        self.blocks = Blocks(size(key, 1), tokens)
        if self.blocks.padded:
            key_mask = mask_or_all(key_mask, key)
        self.mask = None if key_mask is None else self.blocks.cut(key_mask)
        self.given = [x for x in tensors if x is not None]
        self.cut = [self.blocks.cut(x) for x in self.given]

    def read(self, i):
        """Returns y, v, mask, b and the factor of the features, or `None`."""
        y, v, *logs = (self.heads.key_rows(x, i) for x in self.cut)
        mask = self.heads.mask_rows(self.mask, i)
        b, factor = self.kernel.project_keys(y, mask), None
        if logs and self.kernel.max_rise is None:
            factor = tf.exp(logs[0])
        elif logs:
            b += logs[0]
        return y, with_ones(v), mask, b, factor


def _absorb(kernel, fixed, tensors):
    """Returns the running maximum and the sums after all keys, as in `State`."""
    keys, (key, value, _) = _Keys(kernel, fixed, tensors), tensors
    heads = keys.heads

    def step(i, r, sums):
        _, v, mask, b, factor = keys.read(i)
        r_new = tf.stop_gradient(kernel.running_max(r, b))
        e = _times(kernel.key_features(b, r_new, mask), factor)
        sums *= kernel.rescale(r, r_new)
        return r_new, sums + tf.matmul(v, e, transpose_a=True)

    # a loop needs constant shapes; one block starts from shapes of 1, because
    # TensorFlow crashes optimizing one block of no examples
    shape = size(key, 0), heads.num_key_value_heads
    shape = shape if keys.blocks.many else (1, 1)
    start = initial_state(*shape, keys.num_features, size(value, 3), heads.dtype)
    r, sums = keys.blocks.loop(step, heads.state_rows(start))
    return heads.state(r + tf.zeros_like(sums[:, :1]), sums), ()


def _pull_keys(kernel, fixed, tensors, results, saved, dresults):
    """Returns gradients of key, value, logs and `kernel.trained`."""
    keys = _Keys(kernel, fixed, tensors)
    blocks, heads = keys.blocks, keys.heads
    r, dsums = heads.state_rows((results[0], dresults[1]))

    def step(i, arrays, dtrained):
        y, v, mask, b, factor = keys.read(i)
        e = kernel.key_features(b, r, mask)
        de = _times(tf.matmul(v, dsums), factor)
        db = kernel.key_gradient(b, e, de, mask)
        dv = tf.matmul(_times(e, factor), dsums, transpose_b=True)
        dy, more = kernel.pull_keys(y, mask, db, v, dv)
        found = dy, dv[..., :-1], tf.reduce_sum(v * dv, -1, keepdims=True)
        arrays = [z.write(i, heads.key_block(x)) for z, x in zip(arrays, found)]
        return arrays, [x + y for x, y in zip(dtrained, more)]

    arrays = [blocks.array(heads.dtype) for _ in keys.given]
    dtrained = [tf.zeros_like(x) for x in kernel.trained]
    arrays, dtrained = blocks.loop(step, (arrays, dtrained))
    return *blocks.join_in_turn(arrays, keys.given), *dtrained


def _queries(fixed, tensors):
    """Returns `Heads` and `Blocks` of queries, and a state as rows."""
    (block_tokens, r), (query, sums) = fixed, tensors
    key = r[:, tf.newaxis]  # (B, 1, K, M): `Heads` reads axis 2
    heads = Heads(query, key, query)
    # a block has as many rows as a block of keys
    tokens = block_tokens or tokens_per_block(query, r.shape[-1] // heads.group)
    blocks = Blocks(size(query, 1), max(tokens // heads.group, 1))
    return heads, blocks, heads.state_rows((r, sums))


def _answer(kernel, fixed, tensors):
    """Returns the output and the normalizers of queries."""
    heads, blocks, (r, sums) = _queries(fixed, tensors)
    query = tensors[0]
    queries = blocks.cut(query)

    def step(i, outputs, normalizers):
        a = kernel.project_queries(heads.query_rows(queries, i))
        p, peak = kernel.query_features(a, r)
        output = tf.matmul(p, sums, transpose_b=True)
        normalizer = kernel.normalizer(peak, output[..., -1:])
        return (
            outputs.write(i, heads.query_block(normalize(output))),
            normalizers.write(i, normalizer),
        )

    dim = size(sums, -2) - 1
    shapes = (
        blocks.block_shape(query, dim),
        heads.number_shape(query, blocks.tokens),
    )
    arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
    outputs, normalizers = blocks.loop(step, arrays)
    static = dim if isinstance(dim, int) else None
    output = blocks.join(outputs, (*query.shape[:3], static))
    return (output,), normalizers.stack()


def _pull_queries(kernel, fixed, tensors, results, normalizers, dresults):
    """Returns gradients of query, sums and `kernel.trained`."""
    heads, blocks, (r, sums) = _queries(fixed, tensors)
    query, given = tensors[0], (tensors[0], *results, *dresults)
    queries, outputs, doutputs = map(blocks.cut, given)

    def step(i, dqueries, dsums, dtrained):
        x = heads.query_rows(queries, i)
        a = kernel.project_queries(x)
        p = kernel.normalized_query_features(a, r, normalizers[i])
        d = with_normalizer_gradient(
            heads.query_rows(doutputs, i), heads.query_rows(outputs, i)
        )
        d = kernel.divided(d, normalizers[i])
        da = kernel.query_gradient(a, p, tf.matmul(d, sums))
        dx, more = kernel.pull_queries(x, da)
        dsums += tf.matmul(d, p, transpose_a=True)
        dqueries = dqueries.write(i, heads.query_block(dx))
        return dqueries, dsums, [x + y for x, y in zip(dtrained, more)]

    start = tf.zeros_like(sums), [tf.zeros_like(x) for x in kernel.trained]
    dqueries, dsums, dtrained = blocks.loop(step, (blocks.array(heads.dtype), *start))
    _, dsums = heads.state(r, dsums)
    return blocks.join_like(dqueries, query), dsums, *dtrained


def _times(x, factor):
    return x if factor is None else x * factor
