"""Bidirectional attention, in time and memory linear in the length."""

import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.blocks import Blocks, tokens_per_block
from keras_performer.ops.checks import (
    check_attention_inputs,
    check_decay,
    check_no_window,
    check_not_causal,
)
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY, Kernel
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
    split,
)
from keras_performer.ops.linear.causal import attend_within
from keras_performer.ops.linear.near import Reach
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import (
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.segments import reversed_starts
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.state import absorb, initial_state
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.visibility import Visibility


def bidirectional_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    kernel: Kernel,
    key_mask: TensorLike | Visibility | None = None,
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
    kernel.check_heads(key.shape[2])
    kernel = kernel.astype(compute_dtype(query, key, value))
    decay = check_decay(decay, key, query)
    arguments = visible, query, key, value, decay, jit_compile
    output = compile.call_in_graph(attend, kernel, *arguments, jit_compile=jit_compile)
    return tf.cast(output, query.dtype)


def attend(kernel, visible, query, key, value, decay, jit_compile):
    """Computes `bidirectional_attention` of checked arguments."""
    inputs = query, key, value
    if visible.starts is None and decay is None:
        return attend_to_all(kernel, visible, *inputs, jit_compile)
    return attend_both_ways(kernel, visible, *inputs, jit=jit_compile, decay=decay)


def attend_to_all(
    kernel, visible, query, key, value, jit_compile=False, block_tokens=None
):
    """Computes attention of every query to every key that is not masked.

    `block_tokens`, an int, sets the tokens of a block, for tests of small blocks.
    """

    @custom_gradient
    def attention(query, key, value, *trained):
        inputs = kernel.with_trained(trained), visible, block_tokens, query, key, value
        output, *saved = compile.call(_forward, *inputs, jit_compile=jit_compile)

        def gradient(doutput):
            arguments = *inputs, output, *saved, doutput
            options = {"jit_compile": jit_compile, "inline": False}
            return compile.call(_backward, *arguments, **options)

        return tf.cast(output, query.dtype), gradient

    return attention(query, key, value, *kernel.trained)


def _forward(kernel, visible, block_tokens, query, key, value):
    loops = _Bidirectional(query, key, value, kernel, visible, block_tokens)
    return loops.forward(query, key, value)


def _backward(kernel, visible, block_tokens, query, key, value, *saved):
    loops = _Bidirectional(query, key, value, kernel, visible, block_tokens)
    return loops.backward(query, key, value, *saved)


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

    Returns:
        Tensor `(B, T, N, V)` in the dtype of the loops.
    """
    reach = Reach(window, bidirectional=True)
    mask, starts = visible.key_mask, visible.starts
    if mask is not None:
        (mask,) = reach.with_reverses(mask)
    if starts is not None:
        starts = tf.concat([starts, reversed_starts(starts)], 0)
    if decay is not None:
        # in the reverse the key is the later token of a pair
        moved = tf.pad(tf.reverse(decay[:, 1:], [1]), [[0, 0], [1, 0], [0, 0]])
        decay = tf.concat([decay, moved], 0)
    features = kernel.num_features(key.shape[3])
    shape = 2 * size(key, 0), key.shape[2], features, size(value, 3)
    state = initial_state(*shape, compute_dtype(query, key, value))
    keys, options = Recent(key, value, mask), (starts, chunk_size, jit, decay)
    found = attend_within(kernel, reach, query, keys, gain, state, *options, logs=True)
    signs = found.signs
    if signs is None:
        signs = tf.ones_like(found.log_sums)
    return _joined(found.output, found.log_sums, signs)


@custom_gradient
def _joined(output, log_sums, signs):
    """Joins means over sequences and over their reverses into means over all keys.

    `log_sums` are logarithms of the absolute sums of weights, which have these `signs`.
    """

    def shares():
        logs = _halves(log_sums)
        # keys that decays hide have log-sums, too: at most EMPTY
        seen = tf.where(logs > EMPTY, _halves(signs), tf.zeros_like(logs))
        sums = seen * tf.exp(logs - tf.reduce_max(logs, 0))
        return tf.math.divide_no_nan(sums, tf.reduce_sum(sums, 0))

    def gradient(d):
        means, share = _halves(output), shares()
        further = means - tf.reduce_sum(share * means, 0)
        dlogs = share * tf.reduce_sum(d * further, -1, keepdims=True)
        return _batch_of(share * d), _batch_of(dlogs), tf.zeros_like(signs)

    return tf.reduce_sum(shares() * _halves(output), 0), gradient


def _halves(x):
    """Splits a batch into sequences and reverses turned back, `(2, B, T, ...)`."""
    first, second = tf.split(x, 2)
    return tf.stack([first, tf.reverse(second, [1])])


def _batch_of(x):
    """Inverts `_halves`."""
    first, second = tf.unstack(x)
    return tf.concat([first, tf.reverse(second, [1])], 0)


class _Bidirectional:
    """The four loops of bidirectional attention, with their sizes, blocks and mask.

    In the loops, with the shapes of `Kernel`:

        x, a, p    queries, projected queries, their features
        y, b, e    keys, projected keys, their features
        v          values with a column of ones
        r, sums    stabilizer and sums of all keys
        d...       a gradient; d alone: the gradient of the sums of a query, times its
                   normalizer
    """

    def __init__(self, query, key, value, kernel, visible, block_tokens=None):
        self.heads = Heads(query, key, value)
        self.kernel = kernel
        self.num_features = kernel.num_features(key.shape[3])
        tokens = block_tokens or tokens_per_block(key, self.num_features)
        self.query_blocks = Blocks(size(query, 1), max(tokens // self.heads.group, 1))
        self.key_blocks = Blocks(size(key, 1), tokens)
        self.mask = self.key_blocks.cut_mask(visible.key_mask, size(key, 0))

    def forward(self, query, key, value):
        """Computes the output and the residuals of `backward`.

        The residuals are the stabilizer of all keys, parts `(X, 1, M / num_parts)`; the
        sums of values weighted by key features, parts `(X, V + 1, M / num_parts)`; and
        the normalizers of queries.
        """
        heads, kernel = self.heads, self.kernel
        queries = self.query_blocks.cut(query)
        keys, values = self.key_blocks.cut(key), self.key_blocks.cut(value)

        def key_step(i, r, sums):
            mask = heads.mask_rows(self.mask, i)
            b = kernel.project_keys(heads.key_rows(keys, i), mask)
            v = with_ones(heads.key_rows(values, i))
            return absorb(kernel, b, v, r, sums, mask)

        def query_step(i, outputs, normalizers):
            a = kernel.project_queries(heads.query_rows(queries, i))
            p, peak = kernel.query_features(a, r)
            output = over_features(p, sums)
            normalizer = kernel.normalizer(peak, output[..., -1:])
            return (
                outputs.write(i, heads.query_block(normalize(output))),
                normalizers.write(i, normalizer),
            )

        # a loop needs constant shapes; one block starts from shapes of 1, because
        # TensorFlow crashes optimizing one block of no examples
        shape = (size(keys, 0), heads.num_key_value_heads)
        shape = shape if self.key_blocks.many else (1, 1)
        start = initial_state(*shape, self.num_features, size(values, 4), heads.dtype)
        start = (split(x, kernel.num_parts) for x in heads.state_rows(start))
        r, sums = kernel.balance(*self.key_blocks.loop(key_step, start))
        blocks = self.query_blocks
        shapes = (
            blocks.block_shape(query, size(value, 3)),
            heads.query_rows_shape(query, blocks.tokens, 1),
        )
        arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
        outputs, normalizers = self.query_blocks.loop(query_step, arrays)
        output = self.query_blocks.join(outputs, (*query.shape[:3], value.shape[3]))
        return output, r, sums, normalizers.stack()

    def backward(self, query, key, value, output, r, sums, normalizer, doutput):
        """Computes gradients of query, key, value and the kernel's trained tensors."""
        heads, kernel = self.heads, self.kernel
        queries, outputs, doutputs = map(
            self.query_blocks.cut, (query, output, doutput)
        )
        keys, values = map(self.key_blocks.cut, (key, value))

        def query_step(i, dqueries, dsums, dtrained):
            x = heads.query_rows(queries, i)
            a = kernel.project_queries(x)
            p = kernel.normalized_query_features(a, r, normalizer[i])
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i), heads.query_rows(outputs, i)
            )
            d = kernel.divided(d, normalizer[i])
            da = kernel.query_gradient(a, p, per_feature(d, sums))
            dx, more = kernel.pull_queries(x, da)
            dsums = each(tf.add, dsums, over_rows(d, p))
            dqueries = dqueries.write(i, heads.query_block(dx))
            return dqueries, dsums, each(tf.add, dtrained, more)

        def key_step(i, dkeys, dvalues, dtrained):
            mask = heads.mask_rows(self.mask, i)
            y = heads.key_rows(keys, i)
            b = kernel.project_keys(y, mask)
            e = kernel.key_features(b, r, mask)
            v = with_ones(heads.key_rows(values, i))
            db = kernel.key_gradient(b, e, per_feature(v, dsums), mask)
            dv = over_features(e, dsums)
            dy, more = kernel.pull_keys(y, mask, db, v, dv)
            return (
                dkeys.write(i, heads.key_block(dy)),
                dvalues.write(i, heads.key_block(dv[..., :-1])),
                each(tf.add, dtrained, more),
            )

        dqueries = self.query_blocks.array(heads.dtype)
        dkeys, dvalues = (self.key_blocks.array(heads.dtype) for _ in range(2))
        dsums, dtrained = each(tf.zeros_like, sums), each(tf.zeros_like, kernel.trained)
        dqueries, dsums, dtrained = self.query_blocks.loop(
            query_step, (dqueries, dsums, dtrained)
        )
        dkeys, dvalues, dtrained = self.key_blocks.loop(
            key_step, (dkeys, dvalues, dtrained)
        )
        return (
            self.query_blocks.join_like(dqueries, query),
            self.key_blocks.join_like(dkeys, key),
            self.key_blocks.join_like(dvalues, value),
            *dtrained,
        )
