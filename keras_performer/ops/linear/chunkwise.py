"""One block of causal attention in the chunkwise-parallel form, forward and backward.

    sums_c  = factor_c sums_(c-1) + v^T e                       (exclusive scan)
    output  = ((mask * p e^T) v + p sums) / the same of ones    (inside, and before)

p, e are features of the queries and keys of chunk c, v values with a column of ones.
The products inside a chunk cost chunk * (M + V) a token, the sums V * M.

Reference: arXiv 2312.06635 (chunkwise-parallel form of linear attention).
"""

import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
    sum_of_products,
)
from keras_performer.ops.linear import log_pairs
from keras_performer.ops.linear.pairs import Pairs
from keras_performer.ops.linear.references import References, references
from keras_performer.ops.shapes import size


class Block(typing.NamedTuple):
    """Chunks of tokens, and the sums before each.

    Attributes:
        a: projected queries, `(X, chunks, rows, ...)`.
        b: projected keys, parts `(X, chunks, tokens, ...)`.
        v: values with a column of ones, `(X, chunks, tokens, V + 1)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        pairs: `Pairs`.
        references: `References`.
        e: features of keys, parts `(X, chunks, tokens, M / num_parts)`.
        before: the sums before each chunk, parts `(X, chunks, V + 1, M / num_parts)`.
        end: the sums after the last chunk, parts `(X, V + 1, M / num_parts)`.
    """

    a: tf.Tensor
    b: tuple[tf.Tensor, ...]
    v: tf.Tensor
    mask: tf.Tensor | None
    pairs: Pairs
    references: References
    e: tuple[tf.Tensor, ...]
    before: tuple[tf.Tensor, ...]
    end: tuple[tf.Tensor, ...]

    @property
    def read(self):
        """The sums before each chunk, as features of its rows read them."""
        return _scaled(self.before, self.references.to_rows)


def block_of(kernel, a, b, v, mask, pairs, r, sums):
    """The `Block` of projected queries and keys, after the state `r`, `sums`."""
    found = references(kernel, b, pairs, r)
    e = kernel.key_features(b, found.keys, mask)
    added = over_rows(v, _of(pairs.lasts, e))
    before, end = scan(added, sums, found.to_next)
    return Block(a, b, v, mask, pairs, found, e, before, _scaled(end, found.to_end))


def forward(kernel, block):
    """Sums of values and ones of each row, and what they were divided by, as logarithm.

    Returns:
        `(weighted, peak)`, `(X, chunks, rows, V + 1)` and `(X, chunks, rows, 1)`.
    """
    p, peak = kernel.query_features(block.a, block.references.rows)
    weights = _where(block.pairs.visible, kernel.pair_weights(p, block.e))
    weighted = tf.matmul(weights, block.v)
    weighted += over_features(_of(block.pairs.goes_on, p), block.read)
    if block.references.rare is not None:
        weighted, peak = log_pairs.forward(kernel, block, weighted, peak)
    return weighted, peak


def backward(kernel, block, d, normalizer, dend):
    """Gradients of a block.

    Args:
        kernel, block: as in `forward`.
        d: gradient of the sums of each row, times the sum of its weights.
        normalizer: of the rows, `Kernel.normalizer` says what.
        dend: gradient of the sums after the block, parts.

    Returns:
        `(da, db, dv, dsums, dlog)`: of projected queries and keys, of values and ones,
        of the sums before the block, and of the logarithm of each row's weights here,
        `(X, chunks, rows, 1)`.
    """
    pairs, e, v = block.pairs, block.e, block.v
    to_rows, to_next = block.references.to_rows, block.references.to_next
    common, rare = normalizer, block.references.rare
    if rare is not None:
        # no features: their rows are not of these
        rare = rare[:, :, tf.newaxis, tf.newaxis]
        none = kernel.normalizer_of(tf.constant(EMPTY, normalizer.dtype))
        common = tf.where(rare, none, normalizer)
    p = kernel.normalized_query_features(block.a, block.references.rows, common)
    seen = _of(pairs.goes_on, p)
    divided = kernel.divided(d, common)

    weights = _where(pairs.visible, kernel.pair_weights(p, e))
    dweights = _where(pairs.visible, tf.matmul(divided, v, transpose_b=True))
    dp, de = kernel.pull_pairs(p, e, dweights)
    dv = tf.matmul(weights, divided, transpose_a=True)
    dseen = per_feature(divided, block.read)
    dp = each(tf.add, dp, _of(pairs.goes_on, dseen))
    dlog = tf.reduce_sum(weights * dweights, -1, keepdims=True)
    dlog += sum_of_products(seen, dseen)

    dbefore = _scaled(over_rows(divided, seen), to_rows)
    if rare is not None:
        da_, db_, dv_, dbefore_, dlog_ = log_pairs.backward(
            kernel, block, d, normalizer
        )
        dbefore, dlog = each(tf.add, dbefore, dbefore_), dlog + dlog_
    dend = _scaled(dend, block.references.to_end)
    dadded, dsums = scan(dbefore, dend, to_next, reverse=True)
    de = each(tf.add, de, _of(pairs.lasts, per_feature(v, dadded)))
    dv += over_features(_of(pairs.lasts, e), dadded)
    da = kernel.query_gradient(block.a, p, dp)
    db = kernel.key_gradient(block.b, e, de, block.mask)
    if rare is not None:
        da, db, dv = da + da_, each(tf.add, db, db_), dv + dv_
    return da, db, dv, dsums, dlog


def scan(added, start, factors, reverse=False):
    """Running sums before each chunk, and after all.

    Args:
        added: what the chunks add, parts `(X, chunks, rows, dim)`.
        start: sums before all, parts `(X, rows, dim)`.
        factors: what multiplies the sums before a chunk as it is added, parts that
            broadcast to `added`, or `None` for 1.
        reverse: bool, whether the last chunk is added first.
    """
    found = []
    for i, x in enumerate(added):
        chunks = tf.unstack(x, axis=1)
        each_factor = [None] * len(chunks)
        if factors is not None:
            each_factor = tf.unstack(factors[i], axis=1)
        before, total = [], start[i]
        steps = list(zip(chunks, each_factor))
        for chunk, factor in reversed(steps) if reverse else steps:
            before.append(total)
            total = (total if factor is None else total * factor) + chunk
        found.append((tf.stack(before[::-1] if reverse else before, 1), total))
    return tuple(zip(*found))


def to_chunks(x, chunks):
    """`(X, rows, dim)` to chunks `(X, chunks, rows of a chunk, dim)`."""
    return tf.reshape(x, (size(x, 0), chunks, size(x, 1) // chunks, size(x, 2)))


def from_chunks(x):
    """The inverse of `to_chunks`."""
    return tf.reshape(x, (size(x, 0), size(x, 1) * size(x, 2), size(x, 3)))


def _scaled(parts, factors):
    return parts if factors is None else each(tf.multiply, parts, factors)


def _of(mask, parts):
    return parts if mask is None else each(lambda x: _where(mask, x), parts)


def _where(mask, x):
    return tf.where(mask, x, tf.zeros_like(x))
