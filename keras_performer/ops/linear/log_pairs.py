"""The rows of rare chunks, by log-sum-exp over features.

    weight_ij = exp(log_decay_ij + log sum_m exp(a_im + b_jm) - scale_i)

No weight is lost, however far a key rises above the others. The form takes an
exponential for each pair and feature, so a loop computes only the rare chunks. Each
belongs to one example and key-value head; a step of the loop takes a few.
"""

import tensorflow as tf

from keras_performer.ops.blocks import block_sizes
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import each, join
from keras_performer.ops.shapes import ceil_div, size

# The most chunks of a step: few are rare, and a larger group would be mostly padding.
MOST = 8


def forward(kernel, block, weighted, peak):
    """Replaces the rows of rare chunks.

    Args:
        kernel: a `Kernel` with a stabilizer.
        block: a `Block`.
        weighted: sums of values and ones, `(X, chunks, rows, V + 1)`.
        peak: the logarithm of their divisor, `(X, chunks, rows, 1)`.

    Returns:
        `(weighted, peak)`.
    """
    rare = _RareChunks(block)

    def replaced(indices, _, *rows):
        found = _weighted_sums(kernel, *rare.taken(indices))
        return each(
            lambda x, y: tf.tensor_scatter_nd_update(x, indices, y), rows, found
        )

    return rare.loop(replaced, (weighted, peak))


def backward(kernel, block, d, normalizer, gradients):
    """Adds the gradients from the rows of rare chunks.

    Args:
        kernel, block: as in `forward`.
        d: gradient of the sums of each row, times the sum of its weights.
        normalizer: the logarithm of the sum of a row's weights.
        gradients: `(da, db, dv, dbefore, ddecays, dlog)` so far: of projected queries
            and keys, of values and ones, of the sums before each chunk, of the
            log-decays `(pairs, rows)` of `Decays`, or `()`, and of a number added to
            all log-weights of a row, `(X, chunks, rows, 1)`, or `()`.

    Returns:
        The totals, in the form of `gradients`.
    """
    rare = _RareChunks(block)

    def added(indices, valid, *gradients):
        sources, others, decays = rare.taken(indices)
        scale, dsums = (tf.gather_nd(x, indices) for x in (normalizer, d))
        # copies of the last rare chunk fill up the group
        dsums = tf.where(valid, dsums, tf.zeros_like(dsums))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((sources, decays))
            found, _ = _weighted_sums(kernel, sources, others, decays, scale)
            dlog = tf.reduce_sum(found * dsums, -1, keepdims=True)
        found = tf.nest.flatten(tape.gradient(dlog, (sources, decays)))
        # dlog comes last, if wanted
        found = [*found, dlog][: len(gradients)]
        return each(
            lambda x, y: tf.tensor_scatter_nd_add(x, indices, y), gradients, found
        )

    # starts from the given gradients: most blocks have no rare chunk to add
    sums = rare.loop(added, tf.nest.flatten(gradients))
    return tf.nest.pack_sequence_as(gradients, sums)


def _weighted_sums(kernel, sources, others, decays, scale=None):
    """Returns sums of values and ones `(items, rows, V + 1)`, and their `scale`.

    Args:
        sources: projected queries and keys, values and ones, sums before the chunk.
        others: the reference of the sums; visible pairs; rows that see the sums, or
            `None` for all; and `Pairs.log_shares`.
        decays: log-decays of pairs and of the sums before, or `()`.
        scale: logarithm of the divisor; `None` for the largest weight of a row.
    """
    a, b, v, before = sources
    reference, visible, goes_on, shares = others
    nothing = each(lambda x: tf.zeros((1, 1, x.shape[-1]), x.dtype), b)
    queries = join(kernel.query_logs(a, nothing))
    logs = queries[:, :, tf.newaxis] + join(b)[:, tf.newaxis]
    logs = tf.reduce_logsumexp(logs, -1)
    earlier = queries + join(reference)
    if decays:
        logs, earlier = logs + decays[0], earlier + decays[1]
    if shares is not None:
        logs += shares
    logs = _where(visible, logs)
    if goes_on is not None:
        earlier = _where(goes_on, earlier)
    if scale is None:
        largest = (tf.reduce_max(x, -1, keepdims=True) for x in (logs, earlier))
        scale = tf.maximum(tf.maximum(*largest), tf.constant(EMPTY, logs.dtype))
    sums = tf.matmul(tf.exp(logs - scale), v)
    return sums + tf.matmul(
        tf.exp(earlier - scale), join(before), transpose_b=True
    ), scale


class _RareChunks:
    """The rare chunks of a block, each of one row of X; a step takes `at_once`."""

    def __init__(self, block):
        self.block = block
        flags = tf.cast(tf.reshape(block.references.rare, (-1,)), tf.int32)
        self.count = tf.reduce_sum(flags)
        # rare chunks first
        self.order = tf.math.top_k(flags, tf.size(flags)).indices
        pairs = size(block.a, 2) * size(block.v, 2)
        features = sum(x.shape[-1] for x in block.b)
        most = block_sizes().features // (pairs * features)
        self.at_once = min(max(most, 1), MOST) if isinstance(most, int) else 1
        self.decays = ()
        if block.decays is not None:
            self.decays = block.decays.pairs, block.decays.rows

    def taken(self, indices):
        """Gathers inputs of some chunks, `(sources, others, decays)`."""
        block, pairs = self.block, self.block.pairs
        sources = block.a, block.b, block.v, block.before
        visible = pairs.visible
        if visible.shape.rank == 2:
            visible = visible[tf.newaxis]
        else:
            visible = tf.gather_nd(visible, indices)
        sources, reference, decays = tf.nest.map_structure(
            lambda x: tf.gather_nd(x, indices),
            (sources, block.references.before, self.decays),
        )
        goes_on = pairs.goes_on
        goes_on = None if goes_on is None else tf.gather_nd(goes_on, indices)
        return sources, (reference, visible, goes_on, pairs.log_shares), decays

    def loop(self, step, tensors):
        """Runs `tensors = step(indices, valid, *tensors)` over all rare chunks.

        Args:
            step: function of the indices of some chunks, `(items, 2)`, of the bool
                `valid`, `(items, 1, 1)`, false for copies, and of the tensors.
            tensors: tuple of tensors `(X, chunks, ...)`.
        """
        chunks = size(tensors[0], 1)
        last = tf.maximum(self.count - 1, 0)

        def body(i, *tensors):
            numbers = i * self.at_once + tf.range(self.at_once)
            order = tf.gather(self.order, tf.minimum(numbers, last))
            indices = tf.stack([order // chunks, order % chunks], 1)
            valid = (numbers <= last)[:, tf.newaxis, tf.newaxis]
            return i + 1, *step(indices, valid, *tensors)

        _, *tensors = tf.while_loop(
            lambda i, *_: i < ceil_div(self.count, self.at_once),
            body,
            (tf.constant(0), *tensors),
            parallel_iterations=1,
        )
        return tensors


def _where(visible, logs):
    # far below EMPTY, because a scale may be EMPTY
    return tf.where(visible, logs, tf.constant(2 * EMPTY, logs.dtype))
