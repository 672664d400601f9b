"""One block of causal attention, all chunks side by side, under one stabilizer.

It is the fast form, for keys that do not rise far above the block's reference.
"""

import tensorflow as tf

from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
)
from keras_performer.ops.linear.chunks import from_chunks, where_true
from keras_performer.ops.linear.prefix_sums import prefix_sums
from keras_performer.ops.normalizer import normalize


def forward(kernel, block, sight, reference, r_new):
    """Outputs, normalizers and the sums after the block.

    Args:
        kernel: a `Kernel`.
        block: a `Block`.
        sight: its `ChunkSight`.
        reference: stabilizer inside the block, parts `(X, 1, M / num_parts)`.
        r_new: running maximum after the block, parts.
    """
    query_features, peak = kernel.query_features(block.a, reference)
    p = each(block.to_chunks, query_features)
    e = each(block.to_chunks, kernel.key_features(block.b, reference, block.mask))
    v = block.to_chunks(block.v)
    before, after = _sums(kernel, block, sight, v, e, reference)
    weights = kernel.pair_weights(p, e)
    weights = tf.where(sight.pairs, weights, tf.zeros_like(weights))
    past = over_features(_of(sight.first, p), before)
    output = from_chunks(tf.matmul(weights, v) + past)
    normalizer = kernel.normalizer(peak, output[..., -1:])
    after = each(tf.multiply, after, kernel.rescale(reference, r_new))
    return normalize(output), normalizer, after


def backward(kernel, block, sight, d, normalizer, reference, r_new, dsums):
    """Gradients of projected queries and keys, values with their ones, and the sums.

    Args:
        kernel, block, sight, reference, r_new: as in `forward`.
        d: gradient of the sums of each row, times its normalizer.
        normalizer: what `forward` returned.
        dsums: gradient of the sums after the block, parts.
    """
    p = kernel.normalized_query_features(block.a, reference, normalizer)
    d = kernel.divided(d, normalizer)
    e = kernel.key_features(block.b, reference, block.mask)
    p_, e_ = each(block.to_chunks, p), each(block.to_chunks, e)
    v, d = block.to_chunks(block.v), block.to_chunks(d)
    before, _ = _sums(kernel, block, sight, v, e_, reference)
    end = each(tf.multiply, dsums, kernel.rescale(reference, r_new))
    added = over_rows(d, _of(sight.first, p_))
    factors = sight.factors(added)
    dafter, dbefore = prefix_sums(added, end, factors, reverse=True)
    weights = kernel.pair_weights(p_, e_)
    weights = tf.where(sight.pairs, weights, tf.zeros_like(weights))
    dweights = tf.matmul(d, v, transpose_b=True)
    dweights = tf.where(sight.pairs, dweights, tf.zeros_like(dweights))
    dpast = _of(sight.first, per_feature(d, before))
    dlater = _of(sight.last, per_feature(v, dafter))
    dp, de = kernel.pull_pairs(p_, e_, dweights)
    dp, de = each(tf.add, dp, dpast), each(tf.add, de, dlater)
    dv = over_features(_of(sight.last, e_), dafter)
    dv += tf.matmul(weights, d, transpose_a=True)
    return (
        kernel.query_gradient(block.a, p, each(from_chunks, dp)),
        kernel.key_gradient(block.b, e, each(from_chunks, de), block.mask),
        from_chunks(dv),
        each(tf.multiply, dbefore, kernel.rescale(block.r, reference)),
    )


def _sums(kernel, block, sight, v, e, reference):
    """Sums before each chunk, and after all, parts."""
    start = each(tf.multiply, block.sums, kernel.rescale(block.r, reference))
    added = over_rows(v, _of(sight.last, e))
    return prefix_sums(added, start, sight.factors(added))


def _of(mask, parts):
    return each(lambda x: where_true(mask, x), parts)
