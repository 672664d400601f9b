"""One block of causal attention in the chunkwise-parallel form, forward and backward.

    sums_c  = factor_c sums_(c-1) + v^T e                       (exclusive scan)
    output  = ((mask * p e^T) v + p sums_(c-1)^T) / the same with v = 1

p and e are the features of queries and keys of chunk c; v has a column of ones. The
products inside a chunk cost chunk * (M + V) per token, the sums V * M. Decays multiply
the weights of pairs, the sums that rows read, and the keys that enter the sums.

Reference: arXiv 2312.06635 (chunkwise-parallel form of linear attention, with gates).
"""

import typing

import tensorflow as tf

from keras_performer.ops.decays import Decays, decays_of, pull_between, sum_of_rows
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear import log_pairs
from keras_performer.ops.linear.pairs import Pairs
from keras_performer.ops.linear.references import References, references
from keras_performer.ops.shapes import masked, size


class Block(typing.NamedTuple):
    """Inputs of the chunks of one block, and the sums before each chunk.

    Attributes:
        a: projected queries, `(X, chunks, rows, ...)`.
        b: projected keys, `(X, chunks, tokens, ...)`.
        v: values with a column of ones, `(X, chunks, tokens, V + 1)`.
        mask: bool `(X, chunks, tokens, 1)`, true for visible keys, or `None`.
        pairs: `Pairs`.
        references: `References`.
        decays: `Decays`, or `None`.
        fades: log-decays of the features of keys that enter the sums, 0 in rare
            chunks; or `None`.
        e: features of keys, `(X, chunks, tokens, M)`.
        added: features of keys that enter the sums, like `e`, with their decays; 0
            before the chunk's last segment.
        before: sums before each chunk, `(X, chunks, V + 1, M)`.
        end: sums after the last chunk, `(X, V + 1, M)`.
    """

    a: tf.Tensor
    b: tf.Tensor
    v: tf.Tensor
    mask: tf.Tensor | None
    pairs: Pairs
    references: References
    decays: Decays | None
    fades: tf.Tensor | None
    e: tf.Tensor
    added: tf.Tensor
    before: tf.Tensor
    end: tf.Tensor

    @property
    def read(self):
        """The sums before each chunk, scaled to the references of its rows."""
        return _scaled(self.before, self.references.to_rows)

    def of_rows(self, x):
        """Decays features of rows, or gradients; 0 for rows that do not read sums."""
        x = masked(x, self.pairs.goes_on)
        return x if self.decays is None else x * tf.exp(self.decays.rows)

    def faded(self, x):
        """Multiplies weights of pairs, or gradients, by their shares and decays."""
        if self.pairs.log_shares is not None:
            x *= tf.exp(self.pairs.log_shares)
        return x if self.decays is None else x * tf.exp(self.decays.pairs)

    def of_added(self, x):
        """Decays features of keys, or gradients; 0 for keys not added to the sums."""
        x = masked(x, self.pairs.lasts)
        return x if self.fades is None else x * tf.exp(self.fades)


def block_of(kernel, a, b, v, mask, pairs, r, sums, gates, group):
    """Builds the `Block` of projected queries and keys, after the state `r`, `sums`.

    `gates` are log-decays of the keys, `(X, chunks, tokens, 1)`, or `None`; `group` is
    the number of rows of a token.
    """
    decays = None
    if gates is not None:
        level = r[..., :1] if kernel.max_rise is None else None
        decays = decays_of(gates, pairs, mask, group, level)
    found = references(kernel, b, pairs, r, decays)
    logs, fades = b, None
    if decays is not None:
        # a masked key after the last visible one may exceed the scale
        fades = tf.minimum(decays.keys - decays.end, 0.0)
        if found.rare is not None:
            # in rare chunks the features themselves include the decays
            nothing = tf.constant(0.0, b.dtype)
            logs = b + tf.where(found.rare, fades, nothing)
            fades = tf.where(found.rare, nothing, fades)
    e = kernel.key_features(logs, found.keys, mask)
    block = Block(a, b, v, mask, pairs, found, decays, fades, e, e, None, None)
    block = block._replace(added=block.of_added(e))
    added = tf.matmul(v, block.added, transpose_a=True)
    before, end = scan(added, sums, found.to_next)
    return block._replace(before=before, end=_scaled(end, found.to_end))


def forward(kernel, block):
    """Computes the sums of values and ones of each row, and their log-scale.

    Returns:
        `(weighted, peak)`, `(X, chunks, rows, V + 1)` and `(X, chunks, rows, 1)`. The
        sums are `weighted * exp(peak)`, with decays also times `exp(Decays.scale)`.
    """
    p, peak = kernel.query_features(block.a, block.references.rows)
    weights = kernel.pair_weights(p, block.e)
    weights = tf.where(block.pairs.visible, weights, 0.0)
    weights = block.faded(weights)
    weighted = tf.matmul(weights, block.v)
    weighted += tf.matmul(block.of_rows(p), block.read, transpose_b=True)
    if block.references.rare is not None:
        weighted, peak = log_pairs.forward(block, weighted, peak)
    return weighted, peak


class Gradients(typing.NamedTuple):
    """Gradients of a block.

    Attributes:
        da, db, dv: of projected queries and keys, and of values and ones.
        dsums: of the sums before the block.
        dlog: of a number added to all log-weights of a row, `(X, chunks, rows, 1)`;
            `()` if not wanted.
        dgates: of the gates, `(X, chunks, tokens, 1)`, or `None`.
    """

    da: tf.Tensor
    db: tf.Tensor
    dv: tf.Tensor
    dsums: tf.Tensor
    dlog: tf.Tensor
    dgates: tf.Tensor | None


def backward(kernel, block, d, normalizer, dend, with_dlog):
    """Computes the `Gradients` of a block.

    Args:
        kernel, block: as in `forward`.
        d: gradient of the sums of each row, times the sum of its weights.
        normalizer: of the rows, in the form of `Kernel.normalizer`.
        dend: gradient of the sums after the block.
        with_dlog: bool, whether to compute `dlog`.
    """
    e, v = block.e, block.v
    common, rare = normalizer, block.references.rare
    if rare is not None:
        # features of 0: `log_pairs` adds the gradients of rare chunks
        common = tf.where(rare, tf.constant(-EMPTY, normalizer.dtype), normalizer)
    p = kernel.normalized_query_features(block.a, block.references.rows, common)
    seen = block.of_rows(p)
    divided = kernel.divided(d, common)

    visible = block.pairs.visible
    weights = block.faded(tf.where(visible, kernel.pair_weights(p, e), 0.0))
    dweights = tf.matmul(divided, v, transpose_b=True)
    dweights = tf.where(visible, dweights, 0.0)
    dlogs = weights * dweights
    dp, de = kernel.pull_pairs(p, e, block.faded(dweights))
    dv = tf.matmul(weights, divided, transpose_a=True)
    dseen = tf.matmul(divided, block.read)
    dp += block.of_rows(dseen)
    dlog = ddecays = ()
    if with_dlog or block.decays is not None:
        dfrom_sums = tf.reduce_sum(seen * dseen, -1, keepdims=True)
    if block.decays is not None:
        ddecays = dlogs, dfrom_sums
    if with_dlog:
        dlog = tf.reduce_sum(dlogs, -1, keepdims=True) + dfrom_sums
    dbefore = tf.matmul(divided, seen, transpose_a=True)
    dbefore = _scaled(dbefore, block.references.to_rows)
    da = kernel.query_gradient(block.a, p, dp)

    def of_keys(de):
        return kernel.key_gradient(block.b, e, de, block.mask)

    if rare is not None:
        da, db, dv, dbefore, ddecays, dlog = log_pairs.backward(
            block, d, normalizer, (da, of_keys(de), dv, dbefore, ddecays, dlog)
        )

    dend = _scaled(dend, block.references.to_end)
    dadded, dsums = scan(dbefore, dend, block.references.to_next, reverse=True)
    dkeys = tf.matmul(v, dadded)
    if rare is None:
        db = of_keys(de + block.of_added(dkeys))
    else:
        db += of_keys(block.of_added(dkeys))
    dv += tf.matmul(block.added, dadded, transpose_b=True)
    dgates = None
    if block.decays is not None:
        dgates = _gradient_of_gates(block, *ddecays, dkeys, dadded)
    return Gradients(da, db, dv, dsums, dlog, dgates)


def _gradient_of_gates(block, dlogs, dfrom_sums, dkeys, dadded):
    """Computes the gradient of the gates.

    Args:
        dlogs, dfrom_sums: gradients of the log-weights of pairs, `(X, chunks, rows,
            tokens)`, and of the sums before, `(X, chunks, rows, 1)`.
        dkeys: gradient of the features of keys that enter the sums.
        dadded: gradient of the sums after each chunk.
    """
    tokens = size(block.v, 2)
    dpairs, dfrom_sums = (sum_of_rows(x, tokens) for x in (dlogs, dfrom_sums))
    dends = tf.reduce_sum(block.added * dkeys, -1)[:, :, tf.newaxis]
    past = _scaled(block.before, block.references.to_next)
    dpast = tf.reduce_sum(past * dadded, (2, 3), keepdims=True)
    # the sums before decay like the first key, and by the first key's own gate
    after, before = [tokens - 1, 0], [0, tokens - 1]
    dfrom_sums += tf.pad(dpast, [[0, 0], [0, 0], after, [0, 0]])
    dpairs += tf.pad(dends, [[0, 0], [0, 0], after, [0, 0]])
    dpairs += tf.pad(dfrom_sums, [[0, 0], [0, 0], [0, 0], before])
    dfirst = tf.reduce_sum(dfrom_sums, 2, keepdims=True)
    return pull_between(dpairs) + tf.pad(dfirst, [[0, 0], [0, 0], before, [0, 0]])


def scan(added, start, factors, reverse=False):
    """Computes the running sums before each chunk, and after all chunks.

    Args:
        added: the addend of each chunk, `(X, chunks, rows, dim)`.
        start: the initial sums, `(X, rows, dim)`.
        factors: factors of the running sums when a chunk is added, a tensor that
            broadcasts to `added`, or `None` for 1.
        reverse: bool, whether to begin with the last chunk.
    """
    chunks = tf.unstack(added, axis=1)
    each_factor = [None] * len(chunks)
    if factors is not None:
        each_factor = tf.unstack(factors, axis=1)
    before, total = [], start
    steps = list(zip(chunks, each_factor))
    for chunk, factor in reversed(steps) if reverse else steps:
        before.append(total)
        total = (total if factor is None else total * factor) + chunk
    return tf.stack(before[::-1] if reverse else before, 1), total


def _scaled(x, factors):
    return x if factors is None else x * factors
