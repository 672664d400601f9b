"""Which form computes a block of causal attention: that which its keys allow.

The fast form has one stabilizer for a block. Blocks whose keys rise far above it take
the stable form, and if that loses weights, single tokens. Where a segment starts inside
a block, earlier keys may dwarf its own: such a block takes the stable form, too.
"""

import functools
import typing

import tensorflow as tf

from keras_performer.ops.kernels.parts import each, join
from keras_performer.ops.linear import causal_chunks, causal_stable, causal_tokens
from keras_performer.ops.linear.chunks import ChunkSight, from_chunks, to_chunks
from keras_performer.ops.shapes import size
from keras_performer.ops.tapes import unrecorded


class Block(typing.NamedTuple):
    """A block of tokens, and the state before it.

    Attributes:
        chunks: int, how many chunks it has.
        a: projected queries, `(X, tokens * N / K, ...)`.
        b: projected keys, parts.
        v: values with a column of ones, `(X, tokens, V + 1)`.
        mask: bool tensor `(X, tokens, 1)`, true for visible keys, or `None`.
        starts: bool tensor `(X, tokens, 1)`, tokens that start a segment, or `None`.
        pairs: bool tensor `(rows, tokens)`, keys of its own chunk up to a query's own.
        r: running maximum before the block, parts `(X, 1, M / num_parts)`.
        sums: sums before the block, parts `(X, V + 1, M / num_parts)`.
    """

    chunks: int
    a: tf.Tensor
    b: tuple[tf.Tensor, ...]
    v: tf.Tensor
    mask: tf.Tensor | None
    starts: tf.Tensor | None
    pairs: tf.Tensor
    r: tuple[tf.Tensor, ...]
    sums: tuple[tf.Tensor, ...]

    def to_chunks(self, x):
        return to_chunks(x, self.chunks)

    def in_chunks(self):
        """Projections, values and the mask in chunks."""
        mask = None if self.mask is None else self.to_chunks(self.mask)
        b, v = each(self.to_chunks, self.b), self.to_chunks(self.v)
        return self.to_chunks(self.a), b, v, mask

    def sight(self):
        """What is seen in each chunk, of segments too."""
        starts = self.to_chunks(self.starts)
        return ChunkSight.of_starts(self.pairs, starts)


def forward(kernel, block):
    """Outputs, normalizers, and the running maximum and the sums after the block."""
    return _if_unbroken(block, _unbroken_forward, _broken_forward, kernel, block)


def backward(kernel, block, d, normalizer, r_new, dsums):
    """Gradients of projected queries and keys, values with their ones, and the sums.

    Args:
        kernel, block: as in `forward`.
        d: gradient of the sums of each row, times its normalizer.
        normalizer, r_new: what `forward` returned.
        dsums: gradient of the sums after the block, parts.
    """
    given = kernel, block, d, normalizer, r_new, dsums
    return _if_unbroken(block, _unbroken_backward, _broken_backward, *given)


def _if_unbroken(block, unbroken, broken, *given):
    """The one function of what is given, or the other if a segment starts inside."""
    if block.starts is None:
        return unbroken(*given)
    starts = tf.reduce_any(block.starts)
    return tf.cond(starts, lambda: broken(*given), lambda: unbroken(*given))


def _if_fast(kernel, reference, r_new, fast, safe):
    """The safe form where a later key of the block dwarfs the reference."""
    if kernel.max_rise is None:
        return fast()
    rise = join(each(tf.subtract, r_new, reference))
    return _either(tf.reduce_max(rise) < kernel.max_rise, fast, safe)


def _unbroken_forward(kernel, block):
    sight = ChunkSight(block.pairs)
    reference = kernel.reference(block.r, block.b, block.mask)
    r_new = kernel.running_max(reference, block.b)

    def fast():
        return causal_chunks.forward(kernel, block, sight, reference, r_new)

    def safe():
        """Chunks before the first key that dwarfs the reference are of the fast form.

        So no bit of theirs depends on that key.
        """
        *found, _, sums = _safe_forward(kernel, block, sight)
        rise = block.to_chunks(join(each(tf.subtract, block.b, reference)))
        dwarfed = tf.reduce_max(rise, (0, 2, 3)) >= kernel.max_rise
        early = _either(dwarfed[0], lambda: tuple(found), lambda: fast()[:2])
        return *_from_first(dwarfed, found, early), sums

    output, normalizer, sums = _if_fast(kernel, reference, r_new, fast, safe)
    return output, normalizer, r_new, sums


def _broken_forward(kernel, block):
    sight = block.sight()
    if kernel.max_rise is not None:
        return _safe_forward(kernel, block, sight)
    given = kernel, block, sight, block.r, block.r
    output, normalizer, sums = causal_chunks.forward(*given)
    return output, normalizer, block.r, sums


def _safe_forward(kernel, block, sight):
    """The stable form; from the first chunk that lost weights on, single tokens."""
    a, b, v, mask = block.in_chunks()
    *found, r_new, sums, lost = causal_stable.forward(
        kernel, a, b, v, mask, sight, block.r, block.sums
    )
    found = each(from_chunks, found)

    def token_by_token():
        tokens = block.a, block.b, block.v, block.starts
        *exact, _ = causal_tokens.forward(kernel, *tokens, block.r, block.sums)
        return _from_first(lost, exact, found)

    found = _either(tf.reduce_any(lost), token_by_token, lambda: found)
    return *found, r_new, sums


def _unbroken_backward(kernel, block, d, normalizer, r_new, dsums):
    sight = ChunkSight(block.pairs)
    reference = kernel.reference(block.r, block.b, block.mask)

    def fast():
        given = kernel, block, sight, d, normalizer, reference, r_new, dsums
        return causal_chunks.backward(*given)

    def safe():
        return _safe_backward(kernel, block, sight, d, normalizer, dsums)

    return _if_fast(kernel, reference, r_new, fast, safe)


def _broken_backward(kernel, block, d, normalizer, r_new, dsums):
    sight = block.sight()
    if kernel.max_rise is not None:
        return _safe_backward(kernel, block, sight, d, normalizer, dsums)
    given = kernel, block, sight, d, normalizer, block.r, block.r, dsums
    return causal_chunks.backward(*given)


def _safe_backward(kernel, block, sight, d, normalizer, dsums):
    a, b, v, mask = block.in_chunks()
    normalizer_ = block.to_chunks(normalizer)
    state = block.r, block.sums

    def stable():
        d_ = block.to_chunks(d)
        da, db, dv, dstart = causal_stable.backward(
            kernel, a, b, v, d_, mask, sight, normalizer_, *state, dsums
        )
        return from_chunks(da), each(from_chunks, db), from_chunks(dv), dstart

    def token_by_token():
        tokens = block.a, block.b, block.v, block.starts
        return causal_tokens.backward(kernel, *tokens, d, normalizer, *state, dsums)

    bounds = causal_stable.bounds(kernel, a, b, mask, sight)
    # a row that sees no key has one far above all bounds: nothing to lose
    lost = causal_stable.lost(kernel, bounds, normalizer_)
    return _either(tf.reduce_any(lost), token_by_token, stable)


def _either(is_first, first, second):
    """One of two functions of a kernel with a stabilizer, which has no tapes."""
    return tf.cond(is_first, unrecorded(first), unrecorded(second))


def _from_first(flags, later, early):
    """Rows of `later` from the first flagged chunk on, before it those of `early`.

    Args:
        flags: bool `(chunks,)`.
        later, early: tuples of tensors `(X, rows, dim)`.
    """
    late = tf.math.cumsum(tf.cast(flags, tf.int32)) > 0
    late = tf.repeat(late, size(early[0], 1) // flags.shape[0])[:, tf.newaxis]
    return each(functools.partial(tf.where, late), later, early)
