"""Running sums over the few chunks of a block."""

import functools

import tensorflow as tf

from keras_performer.ops.kernels.parts import each


def prefix_sums(added, starts, rescale=None, reverse=False):
    """Running sums before each chunk, and after all.

    Args:
        added: what the chunks add, parts `(X, chunks, rows, dim)`.
        starts: sums before all, parts `(X, rows, dim)`.
        rescale: what multiplies the sums before a chunk as that is added, parts that
            broadcast to `added`; 1 if not given.
        reverse: bool, whether the last chunk is added first.
    """
    scan = functools.partial(_scan, reverse=reverse)
    factors = (rescale,) if rescale is not None else ()
    return tuple(zip(*each(scan, added, starts, *factors)))


def _scan(added, start, rescale=None, *, reverse):
    before = []
    chunks = tf.unstack(added, axis=1)
    factors = [None] * len(chunks) if rescale is None else tf.unstack(rescale, axis=1)
    pairs = list(zip(chunks, factors))
    for chunk, factor in reversed(pairs) if reverse else pairs:
        before.append(start)
        start = (start if factor is None else start * factor) + chunk
    return tf.stack(before[::-1] if reverse else before, 1), start
