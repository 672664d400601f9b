"""Which tokens share a bucket, and where they stand in it."""

import tensorflow as tf

from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.tensors import TensorLike


def lsh_buckets(x: TensorLike, rotations: TensorLike) -> tf.Tensor:
    """The bucket of each vector in each round of hashing, argmax([x R; -x R]).

    Vectors in about the same direction are likely to share it; lengths do not matter.

    Args:
        x: tensor of shape `(B, T, N, H)`.
        rotations: tensor of shape `(rounds, N, H, buckets / 2)`, independent Gaussians:
            the matrices R.

    Returns:
        int32 tensor of shape `(B, T, N, rounds)`, from 0 to `buckets - 1`. It has no
        gradient.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, section 2; Andoni et al. 2015,
        arXiv 1509.02897.

    Example:

    >>> x = [[[[3.0, 0.0]], [[0.0, -5.0]]]]
    >>> lsh_buckets(x, tf.eye(2)[tf.newaxis, tf.newaxis])[0, :, 0, 0].numpy().tolist()
    [0, 3]
    """
    x = tf.stop_gradient(tf.convert_to_tensor(x))
    x = tf.cast(x, compute_dtype(x))
    rotations = tf.cast(rotations, x.dtype)
    half = rotations.shape[-1]

    def buckets_of(rotation):
        rotated = tf.einsum("btnh,nhc->btnc", x, rotation)
        largest = tf.argmax(rotated, -1, output_type=tf.int32)
        smallest = tf.argmin(rotated, -1, output_type=tf.int32)
        is_minus = -tf.reduce_min(rotated, -1) > tf.reduce_max(rotated, -1)
        return tf.where(is_minus, half + smallest, largest)

    # one round after another, as a token has `half` numbers in each
    buckets = tf.map_fn(buckets_of, rotations, fn_output_signature=tf.int32)
    return tf.transpose(buckets, (1, 2, 3, 0))


def places(buckets, window, visible):
    """Where tokens stand among those of their buckets.

    Args:
        buckets: int tensor of shape `(B, T, N, rounds)`.
        window: int, not above a length that is known.
        visible: a `Visibility`. Tokens of different segments share no bucket, and
            masked tokens have no place in any.

    Returns:
        `(seen, codes, order)`, X being batch times heads: bool `(X, T)`, which tokens
        are not masked; int `(X, T, rounds)`, numbers that differ by the places
        between two tokens of one bucket, and by `window` at least for others; and int32
        `(X, rounds, T)`, the tokens sorted by bucket and position, masked ones last.
    """
    buckets = tf.transpose(tf.cast(buckets, tf.int32), (0, 2, 3, 1))
    heads, rounds = buckets.shape[1:3]
    if visible.starts is not None:
        number = segment_numbers(visible.starts)[:, tf.newaxis, tf.newaxis]
        buckets += number * (tf.reduce_max(buckets) + 1)
    seen = visible.key_mask
    if seen is None:
        seen = tf.ones_like(buckets[:, 0, 0], tf.bool)
    else:
        mask = seen[:, tf.newaxis, tf.newaxis]
        buckets = tf.where(mask, buckets, tf.int32.max)
    length = size(buckets, 3)
    buckets = tf.reshape(buckets, (num_rows(buckets, heads), rounds, length))
    order = tf.argsort(buckets, stable=True)
    found = tf.gather(buckets, order, batch_dims=2)
    is_next = tf.cast(found[..., 1:] != found[..., :-1], tf.int32)
    group = tf.pad(tf.cumsum(is_next, axis=2), [[0, 0], [0, 0], [1, 0]])[..., :length]
    fits = isinstance(length, int) and length * (window + 1) < tf.int32.max
    dtype = tf.int32 if fits else tf.int64
    codes = tf.cast(tf.range(length), dtype) + window * tf.cast(group, dtype)
    codes = tf.gather(codes, tf.argsort(order), batch_dims=2)
    return tf.repeat(seen, heads, axis=0), tf.transpose(codes, (0, 2, 1)), order


def near(query, key, window, causal):
    """Whether codes are those of two tokens of a bucket, near enough to be seen."""
    distance = query - key
    if causal:
        return tf.logical_and(distance > 0, distance < window)
    return tf.logical_and(distance != 0, tf.abs(distance) < window)


def num_rows(x, heads):
    """Batch times heads for a reshape, -1 where the batch is not known."""
    return -1 if x.shape[0] is None else x.shape[0] * heads
