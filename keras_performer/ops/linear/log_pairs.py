"""The rows of rare chunks, by log-sum-exp over features.

    weight_ij = exp(log_decay_ij + log sum_m exp(a_im + b_jm) - scale_i)

No weight is lost, however far a key rises above the others. The form takes an
exponential for each pair and feature, so a loop computes only the rare chunks. Each
belongs to one example and key-value head; a step of the loop takes a few.
"""

import tensorflow as tf

from keras_performer.ops.blocks import block_sizes
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import positions, size

# The most chunks of a step: few are rare, and a larger group would be mostly padding.
MOST = 8


def forward(block, weighted, peak):
    """Replaces the rows of rare chunks in the results of `chunkwise.forward`."""
    rare = _RareChunks(block)

    def replaced(indices, _, *rows):
        logs, earlier, _ = _log_weights(block, indices)
        v, before = (tf.gather_nd(x, indices) for x in (block.v, block.before))
        largest = (tf.reduce_max(x, -1, keepdims=True) for x in (logs, earlier))
        scale = tf.maximum(tf.maximum(*largest), EMPTY)
        sums = tf.matmul(tf.exp(logs - scale), v)
        sums += tf.matmul(tf.exp(earlier - scale), before, transpose_b=True)
        return [
            tf.tensor_scatter_nd_update(x, indices, y)
            for x, y in zip(rows, (sums, scale))
        ]

    return rare.loop(replaced, (weighted, peak))


def backward(block, d, normalizer, gradients):
    """Adds the gradients from the rows of rare chunks.

    Args:
        block, d, normalizer: as in `chunkwise.backward`.
        gradients: `(da, db, dv, dbefore, ddecays, dlog)` so far, as in `Gradients`;
            `dbefore` of the sums before each chunk, `ddecays` of the log-decays
            `(pairs, rows)` of `Decays`, or `()`.

    Returns:
        The totals, in the form of `gradients`.
    """
    rare = _RareChunks(block)

    def added(indices, numbers, *gradients):
        scale, dsums = (tf.gather_nd(x, indices) for x in (normalizer, d))
        # copies of the last rare chunk fill up the group
        valid = tf.reshape(numbers < rare.count, (-1, 1, 1))
        dsums = tf.where(valid, dsums, 0.0)
        logs, earlier, (features, total) = _log_weights(block, indices)
        v, before = (tf.gather_nd(x, indices) for x in (block.v, block.before))
        weights, read = tf.exp(logs - scale), tf.exp(earlier - scale)
        dlogs = weights * tf.matmul(dsums, v, transpose_b=True)
        dearlier = read * tf.matmul(dsums, before)
        dproducts = features * (tf.expand_dims(dlogs, -1) / total)
        drows = tf.reduce_sum(dearlier, -1, keepdims=True)
        found = [
            tf.reduce_sum(dproducts, 2) + dearlier,
            tf.reduce_sum(dproducts, 1),
            tf.matmul(weights, dsums, transpose_a=True),
            tf.matmul(dsums, read, transpose_a=True),
            *([dlogs, drows] if block.decays is not None else []),
            tf.reduce_sum(dlogs, -1, keepdims=True) + drows,
        ]
        # dlog comes last, if wanted
        return [
            tf.tensor_scatter_nd_add(x, indices, y) for x, y in zip(gradients, found)
        ]

    # starts from the given gradients: most blocks have no rare chunk to add
    sums = rare.loop(added, tf.nest.flatten(gradients))
    return tf.nest.pack_sequence_as(gradients, sums)


def _log_weights(block, indices):
    """Returns log-weights of pairs and of the features of the sums before.

    Args:
        block: a `Block`.
        indices: of some chunks, `(items, 2)`.

    Returns:
        `(logs, earlier, products)`, `(items, rows, tokens)`, `(items, rows, M)`, and
        the products of features, `(items, rows, tokens, M)`, divided by the largest of
        each pair, with their sum.
    """
    pairs, decays = block.pairs, block.decays

    def take(x):
        return tf.gather_nd(x, indices)

    queries, keys = take(block.a), take(block.b)
    logs = tf.expand_dims(queries, 2) + tf.expand_dims(keys, 1)
    largest = tf.reduce_max(logs, -1, keepdims=True)
    features = tf.exp(logs - largest)
    total = tf.reduce_sum(features, -1, keepdims=True)
    logs = tf.squeeze(largest + tf.math.log(total), -1)
    earlier = queries + take(block.references.before)
    if decays is not None:
        logs, earlier = logs + take(decays.pairs), earlier + take(decays.rows)
    if pairs.log_shares is not None:
        logs += pairs.log_shares
    visible = pairs.visible
    visible = visible if visible.shape.rank == 2 else take(visible)
    hidden = 2 * EMPTY  # far below EMPTY, because a scale may be EMPTY
    logs = tf.where(visible, logs, hidden)
    if pairs.goes_on is not None:
        earlier = tf.where(take(pairs.goes_on), earlier, hidden)
    return logs, earlier, (features, total)


class _RareChunks:
    """The rare chunks of a block, each of one row of X; a step takes `at_once`."""

    def __init__(self, block):
        flags = tf.cast(tf.reshape(block.references.rare, (-1,)), tf.int32)
        self.count = tf.reduce_sum(flags)
        # rare chunks first
        self.order = tf.math.top_k(flags, tf.size(flags)).indices
        pairs = size(block.a, 2) * size(block.v, 2)
        most = block_sizes().features // (pairs * block.b.shape[-1])
        self.at_once = min(max(most, 1), MOST) if isinstance(most, int) else 1

    def loop(self, step, tensors):
        """Runs `tensors = step(indices, numbers, *tensors)` over all rare chunks.

        Args:
            step: function of the indices of some chunks, `(items, 2)`, of their
                numbers, `(items,)`, of which those from `count` on are copies, and of
                the tensors.
            tensors: tuple of tensors `(X, chunks, ...)`.
        """
        chunks = size(tensors[0], 1)

        def body(i, *tensors):
            numbers = i + positions(self.at_once)
            order = tf.gather(self.order, tf.minimum(numbers, self.count - 1))
            indices = tf.stack([order // chunks, order % chunks], 1)
            return i + self.at_once, *step(indices, numbers, *tensors)

        _, *tensors = tf.while_loop(
            lambda i, *_: i < self.count,
            body,
            (tf.constant(0), *tensors),
            parallel_iterations=1,
        )
        return tensors
