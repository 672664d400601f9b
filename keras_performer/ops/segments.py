"""Packed sequences: starts and numbers of segments, and states that restart."""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import TensorLike


def segment_starts(
    segment_ids: TensorLike, last_id: TensorLike | None = None
) -> tf.Tensor:
    """Finds the tokens of a packed sequence that start a segment.

    A segment is a run of equal ids: an id that returns after another starts a new
    segment.

    Args:
        segment_ids: int tensor of shape `(B, T)`.
        last_id: int tensor of shape `(B,)`, the id of the token before the first. If it
            equals the first id, that token continues its segment. Defaults to `None`,
            no earlier tokens.

    Returns:
        bool tensor of shape `(B, T)`, for `Visibility(starts=...)`.

    Example:

    >>> segment_starts([[3, 3, 1, 1, 3]]).numpy().astype(int).tolist()
    [[0, 0, 1, 0, 1]]
    """
    ids = tf.convert_to_tensor(segment_ids)
    first = tf.zeros_like(ids[:, :1], tf.bool)
    if last_id is not None:
        first = ids[:, :1] != tf.cast(last_id, ids.dtype)[:, tf.newaxis]
    return tf.concat([first, ids[:, 1:] != ids[:, :-1]], 1)


def segment_numbers(starts):
    """Returns segment numbers, `(B, T)` int32; the segment of an earlier state is 0."""
    return tf.math.cumsum(tf.cast(starts, tf.int32), axis=1)


def restarted(restarts, r, sums):
    """Resets `r` and `sums`, as in `Kernel`, to the state before the first key.

    The bools `restarts`, which broadcast to both, are true where to reset.
    """
    empty = tf.where(restarts, tf.constant(EMPTY, r.dtype), r)
    return empty, tf.where(restarts, tf.zeros_like(sums), sums)
