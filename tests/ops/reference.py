"""Slow twins of the fast operations, written for comparison with the paper.

Each function takes quadratic memory, and plain autodiff computes gradients. No
computation is shared with the fast code: every entry of the matrix of weights comes
from the definition of the features, in a tensor `(B, N, T, S, M)`.
Equation numbers refer to "Rethinking Attention with Performers" (arXiv 2009.14794).
Use float64 inputs for reference values; results have the dtype of the inputs.
"""

import numpy as np
import tensorflow as tf

from keras_performer.ops.kernels import EluKernel, ExponentialKernel, TaylorKernel

# A sum of log-decays that hides a key, even the only key of a row.
FORGOTTEN = -1e30


def attention(query, key, value, kernel, key_mask=None, causal=False, **options):
    """Computes attention with the weights of `kernel` from the whole matrix.

    This is equation 4, `D^-1 (Q' (K')^T) V`, in the order that the paper avoids. With
    `causal=True`, `tril` is applied to `Q' (K')^T` (section 2.2 and appendix B.1).

    The value is `(B, S, K, V)`; other arguments are as in `pair_weights`. Returns a
    tensor `(B, T, N, V)`; a row that sees no key is 0.
    """
    weights = attention_matrix(query, key, kernel, key_mask, causal, **options)
    value = _one_head_per_query_head(value, query)
    return tf.einsum("bnts,bsnv->btnv", weights, value)


def attention_matrix(query, key, kernel, key_mask=None, causal=False, **options):
    """Returns the implied attention matrix `D^-1 Q' (K')^T` of equation 4.

    Arguments are as in `pair_weights`. The matrix is `(B, N, T, S)`; rows sum to 1, and
    a row that sees no key is 0.
    """
    pairs = pair_weights(query, key, kernel, key_mask, causal, **options)
    return _normalized(*pairs)[0]


def log_sums(query, key, kernel, key_mask=None, causal=False, **options):
    """Returns the logarithm of each row's sum of weights, if weights are positive.

    Arguments are as in `pair_weights`. The result is `(B, T, N, 1)`; -inf for a row
    that sees no key.
    """
    pairs = pair_weights(query, key, kernel, key_mask, causal, **options)
    return tf.transpose(_normalized(*pairs)[1], (0, 2, 1, 3))


def pair_weights(
    query,
    key,
    kernel,
    key_mask=None,
    causal=False,
    exact_window=None,
    log_gain=None,
    starts=None,
    decay=None,
):
    """Returns the weight of key j for query i, before rows are divided by their sums.

        e^(decay of the tokens min(i, j) + 1 .. max(i, j)), times
        e^(q_i . k_j / sqrt(H))             if |i - j| < exact_window
        e^log_gain phi(q_i) . phi(k_j)      if not

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; K divides N (grouped queries).
        kernel: the kernel object that the fast operation takes; `None` for local
            attention.
        key_mask: boolean tensor of shape `(B, S)`, true where a key is visible.
        causal: whether query t sees keys 0..t only.
        exact_window: int W, or `None` for estimated weights only.
        log_gain: tensor of shape `(N,)`, or `None` for 0.
        starts: boolean tensor of shape `(B, S)`, true for the first token of a segment;
            queries see their own segment. `None` for one segment.
        decay: tensor of shape `(B, S, K)`, log-decays <= 0, or `None` for 0. A
            log-decay of -1e30 or less hides the keys that it decays.

    Returns:
        `(factors, logs, visible)`, tensors that broadcast to `(B, N, T, S)`: the weight
        is `factors * exp(logs)` where `visible` is true, else 0.
    """
    key = _one_head_per_query_head(key, query)
    visible = _visible(query, key, key_mask, causal, starts)
    if isinstance(kernel, ExponentialKernel):
        logs = log_kernel(query, key, kernel)
        factors = tf.ones_like(logs)
    elif kernel is not None:
        features = activation_features(query, kernel), activation_features(key, kernel)
        factors = tf.einsum("btnm,bsnm->bnts", *features)
        logs = tf.zeros_like(factors)
    if log_gain is not None:
        logs += tf.cast(log_gain, logs.dtype)[:, None, None]
    if exact_window is not None:
        exact = tf.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
        near = tf.abs(_distances(query, key)) < exact_window
        if kernel is None:
            factors, logs, visible = tf.ones_like(exact), exact, visible & near
        factors, logs = tf.where(near, 1, factors), tf.where(near, exact, logs)
    if decay is not None:
        decays = _decays_between(
            _one_head_per_query_head(decay, query), _distances(query, key)
        )
        visible &= decays > FORGOTTEN
        logs += tf.where(visible, decays, 0)
    return factors, logs, visible


def log_kernel(query, key, kernel):
    """Computes the log of the estimate of `exp(q . k / sqrt(H))`, Lemma 1 (equation 7).

    The estimate is the mean over features of
    `exp(w . x - |x|^2 / 2) exp(w . y - |y|^2 / 2)` with `x = q H^(-1/4)`,
    `y = k H^(-1/4)`, times the weight of the feature. The estimate is unbiased if the
    rows w (with their weights) follow N(0, I_H).

    Query and key are `(B, T, N, H)` and `(B, S, N, H)`; the result is `(B, N, T, S)`.
    """
    query_logs = log_features(query, kernel)
    key_logs = log_features(key, kernel) + _log_weights(kernel, key)
    products = query_logs[:, :, None] + key_logs[:, None]
    logs = tf.reduce_logsumexp(products, axis=-1)
    logs -= tf.math.log(tf.cast(query_logs.shape[-1], logs.dtype))
    return tf.transpose(logs, (0, 3, 1, 2))


def log_features(inputs, kernel):
    """Logarithms `w . x - |x|^2 / 2` of the positive features of Lemma 1.

    Inputs are queries or keys `(B, L, N, H)`, the result is `(B, L, N, M)`.
    """
    scaled = inputs * inputs.shape[-1] ** -0.25
    half_norms = tf.reduce_sum(scaled**2, axis=-1, keepdims=True) / 2
    return _projected(scaled, kernel) - half_norms


def activation_features(inputs, kernel):
    """Features `f(w . x) + epsilon` of generalized attention, equation 5 with h = 1.

    Without a projection, w are unit vectors. Shapes are as in `log_features`.
    """
    if isinstance(kernel, EluKernel):
        return tf.nn.elu(inputs) + 1.0
    projected = inputs * inputs.shape[-1] ** -0.25
    if isinstance(kernel, TaylorKernel):
        return taylor_features(projected[..., : kernel.rank])
    if kernel.projection_matrix is not None:
        projected = _projected(projected, kernel)
    return kernel.activation(projected) + kernel.epsilon


def taylor_features(x):
    """Returns 1, each element, and each product of two; squares are over sqrt(2)."""
    elements = tf.unstack(x, axis=-1)
    features = [tf.ones_like(elements[0]), *elements]
    for i, first in enumerate(elements):
        features.append(first * first / 2**0.5)
        features.extend(first * second for second in elements[i + 1 :])
    return tf.stack(features, -1)


def _projected(inputs, kernel):
    """Multiplies by the rows of one matrix for all heads, or of a matrix per head."""
    matrix = tf.cast(kernel.projection_matrix, inputs.dtype)
    matrix = matrix[None] if len(matrix.shape) == 2 else matrix
    matrix = _one_head_per_query_head(matrix, inputs, axis=0)
    return tf.einsum("blnh,nmh->blnm", inputs, matrix)


def _log_weights(kernel, key):
    if kernel.log_weights is None:
        return tf.zeros((), key.dtype)
    weights = tf.cast(kernel.log_weights, key.dtype)
    if len(weights.shape) == 2:
        weights = _one_head_per_query_head(weights, key, axis=0)
    return weights


def _one_head_per_query_head(inputs, query, axis=2):
    return tf.repeat(inputs, query.shape[2] // inputs.shape[axis], axis=axis)


def _distances(query, key):
    """Returns the distances i - j of query i from key j, `(T, S)`."""
    return tf.range(tf.shape(query)[1])[:, None] - tf.range(tf.shape(key)[1])


def _visible(query, key, key_mask, causal, starts=None):
    """Returns the visible pairs, bool, broadcastable to `(B, N, T, S)`."""
    distances = _distances(query, key)[None, None]
    visible = distances >= 0 if causal else tf.ones_like(distances, tf.bool)
    if key_mask is not None:
        visible = visible & key_mask[:, None, None]
    if starts is not None:
        segments = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        visible &= (segments[:, :, None] == segments[:, None])[:, None]
    return visible


def _decays_between(decay, distances):
    """Sums the log-decays of tokens min(i, j) + 1 .. max(i, j), `(B, N, T, T)`.

    The sums in column j begin after token j. A difference of two sums that begin at the
    first token would lose small log-decays after a huge one.
    """
    decay = tf.transpose(decay, (0, 2, 1))[..., None]
    sums = tf.cumsum(tf.where(distances > 0, decay, 0), axis=2)
    return sums + tf.linalg.matrix_transpose(sums)


def _normalized(factors, logs, visible):
    """Returns weights of rows that sum to 1, and the logarithms of the former sums.

    A row without visible keys has weights 0, not NaN, and the logarithm -inf.
    """
    tiny = tf.constant(np.finfo(logs.dtype.as_numpy_dtype).tiny, logs.dtype)
    sizes = logs + tf.math.log(tf.maximum(tf.abs(factors), tiny))
    sizes = tf.where(visible, sizes, logs.dtype.min)
    largest = tf.stop_gradient(tf.reduce_max(sizes, axis=-1, keepdims=True))
    weights = factors * tf.exp(tf.where(visible, logs - largest, 0))
    weights = tf.where(visible, weights, 0)
    sums = tf.reduce_sum(weights, axis=-1, keepdims=True)
    return tf.math.divide_no_nan(weights, sums), largest + tf.math.log(sums)
