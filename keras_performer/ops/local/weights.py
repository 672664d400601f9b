"""Exact weights of the keys in a band, chunk by chunk, and their gradients.

    output = softmax(x y^T + band) v

x       queries with a column of ones, `(..., rows, H + 1)`
y       keys with a column of addends of their logits, `(..., span, H + 1)`
v       values with a column of ones, `(..., span, V + 1)`
band    addends of the logits of pairs, `(..., rows, span)`
"""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.shapes import size

# The addend of hidden logits, far below EMPTY. Logits of up to a tenth of its size stay
# hidden, and the sum of three is still finite in float32.
HIDDEN = -1e38


def hidden_unless(visible, dtype):
    """Returns addends of logits: 0 where a key is visible, else HIDDEN."""
    return tf.where(visible, tf.constant(0.0, dtype), tf.constant(HIDDEN, dtype))


def forward(x, y, v, band):
    """Returns means of values and log-sums, `(..., rows, V)` and `(..., rows, 1)`."""
    logits = tf.matmul(x, y, transpose_b=True) + band
    # rows without a visible key get weights of 0, too
    peak = tf.reduce_max(logits, -1, keepdims=True)
    peak = tf.maximum(peak, tf.constant(EMPTY, peak.dtype))
    sums = tf.matmul(tf.exp(logits - peak), v)
    sums, total = tf.split(sums, [size(sums, -1) - 1, 1], -1)
    total = tf.where(total > 0, total, tf.constant(1.0, total.dtype))
    return sums / total, peak + tf.math.log(total)


def backward(x, y, v, band, d, log):
    """Returns gradients of queries, keys, values and logits.

    Args:
        x, y, v, band: as in `forward`.
        d: gradient of the sums of each row, times its normalizer.
        log: the log-sums over all keys that a row sees, inside the band or not.

    Returns:
        `(dx, dy, dv, dlogits)`, without gradients of the additional columns.
    """
    # band and log stay outside the product, because GPUs and TPUs round its inputs
    p = tf.exp(tf.matmul(x, y, transpose_b=True) + band - log)
    dlogits = p * tf.matmul(d, v, transpose_b=True)
    dx = tf.matmul(dlogits, y[..., :-1])
    dy = tf.matmul(dlogits, x[..., :-1], transpose_a=True)
    dv = tf.matmul(p, d[..., :-1], transpose_a=True)
    return dx, dy, dv, dlogits
