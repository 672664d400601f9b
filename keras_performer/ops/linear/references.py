"""References of the chunks of a block, which stabilize the features.

    feature = exp(log-feature - reference)

No sum overflows and none vanishes. The reference of a chunk is the running maximum of
the keys before it and of its first visible key. Every row that sees any key of the
chunk sees all of these. So each row has a product of features of at least 1, and no
reference depends on a key that a row does not see.

Where a key rises `kernel.max_rise` or more above its reference, a product of features
might overflow. `log_pairs.py` computes the rows of such a rare chunk. It also computes
a chunk whose decays may leave a row only keys that far below the reference.

References only choose a scale: it cancels in the results, and has no gradient.
"""

import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY


class References(typing.NamedTuple):
    """The references of a block, and the factors that its sums need.

    Attributes:
        rows: for query features, `(X, chunks, 1 or rows, M)`.
        keys: for key features, `(X, chunks, 1 or tokens, M)`. Keys of a chunk that
            enter the sums share the reference of the sums after it.
        before: for the sums before each chunk, `(X, chunks, 1, M)`.
        to_rows: factor of the sums before a chunk for its rows, `(X, chunks, 1, M)`;
            `None` for 1.
        to_next: factor of these sums when the chunk is added; `None` for 1.
        to_end: factor of the sums after the last chunk, `(X, 1, M)`; `None` for 1.
        r_new: the running maximum after the block, `(X, 1, M)`.
        rare: bool `(X, chunks, 1, 1)`; `None` for kernels without a stabilizer.
    """

    rows: tf.Tensor
    keys: tf.Tensor
    before: tf.Tensor | None
    to_rows: tf.Tensor | None
    to_next: tf.Tensor | None
    to_end: tf.Tensor | None
    r_new: tf.Tensor
    rare: tf.Tensor | None


def references(kernel, b, pairs, r, decays):
    """Computes the `References` of a block.

    `b`, `pairs` and `decays` are as in `Block`; `r` is the running maximum before the
    block, `(X, 1, M)`.
    """
    if kernel.max_rise is None:
        return _without_stabilizer(pairs, r, decays)
    top = _largest(b)
    faded = b if decays is None else b + decays.keys
    if pairs.lasts is None:
        added = top if decays is None else _largest(faded)
    else:
        added = _largest(tf.where(pairs.lasts, faded, EMPTY))
    earlier, after, r_new = _running_max(r, added, pairs.whole, decays)
    first = _going_on(b, pairs, earlier)
    if pairs.lasts is None:
        rise = top - first
        rows, keys, safe = first, first, after
    else:
        keys = tf.where(pairs.keys_go_on, first, pairs.first_of_keys.gather(b))
        rows = tf.where(pairs.goes_on, first, pairs.first_of_rows.gather(b))
        rise = _largest(b - keys, -1)
        safe = tf.where(pairs.lasts, after, top)
    rare = _largest(rise, (2, 3)) >= kernel.max_rise
    if decays is not None:
        fall = tf.where(b > EMPTY, keys - b, EMPTY)  # of visible keys, below references
        loses = _largest(fall, (2, 3)) >= kernel.max_rise
        fades = decays.past <= -kernel.max_rise
        rare = tf.logical_or(rare, tf.logical_and(fades, loses))
        safe -= decays.end
    # keys of a rare chunk enter the sums, too: their features must not overflow
    keys = tf.where(rare, safe, keys)
    own = keys if pairs.lasts is None else keys[:, :, -1:]
    if decays is not None:
        own = tf.maximum(own + decays.end, EMPTY)
    # the sums before a chunk have the reference of the chunk before it
    *ends, last = tf.unstack(own, axis=1)
    before = tf.stack([r, *ends], 1)
    if decays is not None:
        before += decays.first
        to_rows = tf.exp(before - first)
        to_next = tf.exp(before + decays.past - own)
    else:
        to_rows = to_next = tf.exp(before - own)
    if pairs.lasts is not None:
        # an ended segment may be far above the reference: an infinite factor
        to_next = tf.where(pairs.whole, to_next, 0.0)
        to_rows = tf.exp(before - first)
    to_end = tf.exp(last - r_new)
    return References(rows, keys, before, to_rows, to_next, to_end, r_new, rare)


def _without_stabilizer(pairs, r, decays):
    """Returns `References` for features without a stabilizer: only decays scale."""
    rows, to_next = tf.expand_dims(r, 1), None
    if decays is not None:
        to_next = tf.exp(decays.level + decays.past - decays.end)
        r = tf.zeros_like(r) + decays.end[:, -1]
    if pairs.whole is not None:
        whole = tf.cast(pairs.whole, rows.dtype)
        to_next = whole if to_next is None else tf.where(pairs.whole, to_next, whole)
    return References(rows, rows, None, None, to_next, None, r, None)


def _running_max(r, top, whole, decays):
    """Returns running maxima: before and after each chunk, and after all.

    The shapes are `(X, chunks, 1, M)`, and at the end `(X, 1, M)`.
    """
    before, after = [], []
    if whole is not None:
        whole = tf.unstack(whole, axis=1)
    if decays is not None:
        gates, past = (tf.unstack(x, axis=1) for x in (decays.first, decays.past))
    empty = tf.constant(EMPTY, r.dtype)
    for i, chunk in enumerate(tf.unstack(top, axis=1)):
        if decays is not None:
            r = tf.maximum(r + gates[i], empty)
        before.append(r)
        if decays is not None:
            r = tf.maximum(r + past[i], empty)
        if whole is not None:
            r = tf.where(whole[i], r, empty)
        r = tf.maximum(r, chunk)
        after.append(r)
    return tf.stack(before, 1), tf.stack(after, 1), r


def _going_on(b, pairs, before):
    """Returns the running maximum before a chunk, raised to its first visible key.

    If this is not the chunk's first token, it counts only where the sums before are
    empty, because rows before the key see the sums alone.
    """
    if pairs.first is None:
        return tf.maximum(before, b[:, :, :1])
    first = pairs.first.gather(b)
    empty = before[..., :1] <= EMPTY
    counts = tf.logical_or(empty, tf.expand_dims(pairs.first.index == 0, -1))
    return tf.maximum(before, tf.where(counts, first, EMPTY))


def _largest(x, axis=2):
    return tf.reduce_max(x, axis, keepdims=True)
