"""One block of causal attention whose keys rise far above what came before.

Inside a chunk the features of a query are divided by the largest of them, and those of
a key by the largest of them; the sums of past keys have a stabilizer for each chunk.
That takes a second set of features. A weight is lost if it is far less than its bound,
the product of the two largest: where a bound is `kernel.max_rise` above the sum of a
row's weights, this form is not to be used.

Shapes are those of `Kernel` in chunks: `(X, chunks, rows or tokens of a chunk, dim)`,
but for maxima and sums before and after the block.
"""

import functools
import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
)
from keras_performer.ops.linear.chunks import where_true
from keras_performer.ops.linear.prefix_sums import prefix_sums
from keras_performer.ops.normalizer import normalize

# The logarithm of the largest feature. With it queries and keys of standard deviation 8
# fit into float32's range (head size 64: bounds are up to 62 above sums of weights).
HEADROOM = 12.0


def forward(kernel, a, b, v, mask, sight, r, sums):
    """Outputs, normalizers, the state after, and which chunks lost weights.

    Args:
        kernel: a `Kernel` with a stabilizer.
        a: projected queries.
        b: projected keys, parts.
        v: values with a column of ones.
        mask: bool, true for visible keys, or `None`.
        sight: a `ChunkSight`.
        r: running maximum before the block, parts `(X, 1, M / num_parts)`.
        sums: sums before the block, parts `(X, V + 1, M / num_parts)`.
    """
    past = _past(kernel, b, mask, sight, r)
    before, after = prefix_sums(over_rows(v, past.e), sums, past.rescale)
    p, peak = kernel.query_features(a, past.maxima)
    p = each(lambda p: where_true(sight.first, p), p)
    peak = where_true(sight.first, peak, EMPTY)
    near_p, near_e, bounds = _near_features(kernel, a, b, mask, sight)
    weights = over_features(near_p, near_e)
    logs = tf.math.log(tf.where(weights > 0, weights, tf.ones_like(weights))) + bounds
    logs = tf.where(weights > 0, logs, tf.constant(EMPTY, logs.dtype))
    # each row has a key, its own: EMPTY if that is masked
    top = tf.maximum(peak, _largest(logs))
    weights = tf.where(weights > 0, tf.exp(logs - top), tf.zeros_like(logs))
    weighted = tf.matmul(weights, v) + tf.exp(peak - top) * over_features(p, before)
    normalizer = kernel.normalizer(top, weighted[..., -1:])
    lost_ = lost(kernel, bounds, kernel.log_normalizer(normalizer))
    return normalize(weighted), normalizer, past.r_new, after, lost_


def backward(kernel, a, b, v, d, mask, sight, normalizer, r, sums, dsums):
    """Gradients of projected queries and keys, values with their ones, and the sums.

    Args:
        kernel, a, b, v, mask, sight, r, sums: as in `forward`.
        d: gradient of the sums of each row, times its normalizer.
        normalizer: what `forward` returned.
        dsums: gradient of the sums after the block, parts.
    """
    past = _past(kernel, b, mask, sight, r)
    before, _ = prefix_sums(over_rows(v, past.e), sums, past.rescale)
    p = kernel.normalized_query_features(a, past.maxima, normalizer)
    # it may be infinite where the past, far above what a row sees, is not seen
    p = each(lambda p: where_true(sight.first, p), p)
    # of the scale before a chunk, as what it adds
    dlater, dsums = prefix_sums(over_rows(d, p), dsums, past.rescale, reverse=True)
    near_p, near_e, bounds = _near_features(kernel, a, b, mask, sight)
    scale = tf.exp(bounds - normalizer)
    weights = over_features(near_p, near_e) * scale
    dweights = tf.matmul(d, v, transpose_b=True) * scale
    dweights = tf.where(sight.pairs, dweights, tf.zeros_like(dweights))
    da = kernel.query_gradient(a, p, per_feature(d, before))
    da += kernel.query_gradient(a, near_p, per_feature(dweights, near_e))
    db = each(
        tf.add,
        kernel.key_gradient(past.b, past.e, per_feature(v, dlater), past.mask),
        kernel.key_gradient(b, near_e, over_rows(dweights, near_p), mask),
    )
    dv = over_features(past.e, dlater) + tf.matmul(weights, d, transpose_a=True)
    return da, db, dv, dsums


def bounds(kernel, a, b, mask, sight):
    """What weights inside chunks were divided by, `(X, chunks, rows, tokens)`, as logs.

    Far below `EMPTY` where a key is not to be seen.
    """
    return _near_features(kernel, a, b, mask, sight)[2]


def lost(kernel, bounds, logs):
    """Which chunks have rows whose weights may have been lost, bool `(chunks,)`.

    Args:
        bounds: as `bounds` returns them.
        logs: the logarithms by which each row divides its weights.
    """
    return tf.reduce_max(bounds - logs, (0, 2, 3)) >= kernel.max_rise


def _near_features(kernel, a, b, mask, sight):
    """Features of queries and of keys for weights inside chunks, and the bounds."""
    nothing = each(lambda b: tf.zeros_like(b[:, :, :1, :1]), b)
    peak = kernel.query_features(a, nothing)[1] - HEADROOM
    p = kernel.normalized_query_features(a, nothing, peak)
    top = functools.reduce(tf.maximum, each(_largest, b))
    seen = top > EMPTY
    top = tf.maximum(top, tf.constant(EMPTY, top.dtype)) - HEADROOM
    e = kernel.key_features(b, each(lambda _: top, b), mask)
    transposed = functools.partial(tf.transpose, perm=(0, 1, 3, 2))
    visible = tf.logical_and(sight.pairs, transposed(seen))
    hidden = tf.constant(2 * EMPTY, peak.dtype)
    return p, e, tf.where(visible, peak + transposed(top), hidden)


class _Past(typing.NamedTuple):
    """How a block's keys become the states between its chunks.

    Attributes:
        maxima: running maxima before each chunk, parts `(X, chunks, 1, dim)`.
        r_new: running maximum after the block, parts.
        b, e, mask: the keys of each chunk that are in the state after it, projected and
            their features, and which these are.
        rescale: what multiplies the sums before a chunk as that is added, parts.
    """

    maxima: tuple[tf.Tensor, ...]
    r_new: tuple[tf.Tensor, ...]
    b: tuple[tf.Tensor, ...]
    e: tuple[tf.Tensor, ...]
    mask: tf.Tensor | None
    rescale: tuple[tf.Tensor, ...]


def _past(kernel, b, mask, sight, r):
    if sight.last is not None:
        mask = sight.last if mask is None else tf.logical_and(mask, sight.last)
        b = each(lambda b: where_true(sight.last, b, 2 * EMPTY), b)
    earlier, later = [r], []
    for index, chunk in enumerate(zip(*each(lambda b: tf.unstack(b, axis=1), b))):
        only = None if sight.only is None else sight.only[:, index]
        start = tuple(where_true(only, r, EMPTY) for r in earlier[-1])
        later.append(kernel.running_max(start, chunk))
        earlier.append(later[-1])
    stack = functools.partial(each, lambda *x: tf.stack(x, 1))
    maxima, later = stack(*earlier[:-1]), stack(*later)
    e = kernel.key_features(b, later, mask)
    rescale = kernel.rescale(maxima, later)
    # an earlier maximum may be far above, and its factor infinite
    rescale = each(lambda x: where_true(sight.only, x), rescale)
    return _Past(maxima, earlier[-1], b, e, mask, rescale)


def _largest(x):
    return tf.reduce_max(x, -1, keepdims=True)
