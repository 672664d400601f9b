"""One step of causal attention's recurrence: decoding is many of them.

It has no blocks, and features in one part: what a token costs is operations.
"""

import tensorflow as tf

from keras_performer.ops.kernels.parts import each
from keras_performer.ops.normalizer import normalize, with_ones
from keras_performer.ops.shapes import repeat, size


def one_token(kernel, mask, query, key, value, r, sums, with_log_sums=False):
    """The output for the token, its log-sums, and the state after it.

    Args:
        kernel: a `Kernel` in the dtype of the state.
        mask: bool tensor of shape `(B, 1)`, true for a visible key, or `None`.
        query: tensor of shape `(B, 1, N, H)`.
        key: tensor of shape `(B, 1, K, H)`.
        value: tensor of shape `(B, 1, K, V)`.
        r: running maximum before the token, `(X, 1, M)`.
        sums: sums before the token, `(X, V + 1, M)`.
        with_log_sums: bool, whether to return log-sums; else they are `None`.

    Returns:
        `(output, log_sums, r, sums)`: tensors `(B, 1, N, V)` and `(B, 1, N, 1)`, and
        the state after the token.
    """
    # a small product costs less than more operations
    kernel = kernel.in_one_part()
    heads, group = key.shape[2], query.shape[2] // key.shape[2]
    # a single token needs no transposition: heads stand together as they are
    q, k, v = (
        tf.cast(tf.reshape(x, (-1, rows, size(x, 3))), r.dtype)
        for x, rows in ((query, group), (key, 1), (value, 1))
    )
    if mask is not None:
        mask = repeat(mask, heads, 0)[..., tf.newaxis]
    b = kernel.project_keys(k, mask)
    r_new = each(tf.stop_gradient, kernel.running_max((r,), b))
    (e,), v = kernel.key_features(b, r_new, mask), with_ones(v)
    (features,), peak = kernel.query_features(kernel.project_queries(q), r_new)
    (rescale,) = kernel.rescale((r,), r_new)
    # the past and the token itself: the output need not wait for the new sums
    past = tf.matmul(features * rescale, sums, transpose_b=True)
    weighted = past + tf.reduce_sum(features * e, -1, keepdims=True) * v
    # a product of shapes (V + 1, 1) and (1, M)
    sums = sums * rescale + tf.reshape(v, (-1, size(v, 2), 1)) * e
    shape = size(query, 0), 1, query.shape[2]
    output = tf.reshape(normalize(weighted), (*shape, size(value, 3)))
    if not with_log_sums:
        return tf.cast(output, query.dtype), None, *r_new, sums
    log_sums = kernel.log_normalizer(kernel.normalizer(peak, weighted[..., -1:]))
    return output, tf.reshape(log_sums, (*shape, 1)), *r_new, sums
