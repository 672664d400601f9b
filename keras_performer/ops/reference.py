"""Slow twins of the fast operations, written to be read beside the paper.

Everything here is quadratic in the length, or a Python loop over the tokens, and
leaves gradients to plain autodiff. Nothing is shared with the fast code: the matrix of
weights is built entry by entry from the definition of the features, `[B, N, T, S, M]`
in memory.
Equation numbers are those of "Rethinking Attention with Performers" (arXiv 2009.14794).
Use float64 inputs for an oracle; the result has the dtype of the inputs.
"""

import tensorflow as tf

from keras_performer.ops.kernels import EluKernel, ExponentialKernel, TaylorKernel


def attention(query, key, value, kernel, key_mask=None, causal=False):
    """Attention with the weights of `kernel`, by forming the whole matrix.

    Equation 4, `D^-1 (Q' (K')^T) V`, in the order that the paper avoids. With
    `causal=True`, `tril` is applied to `Q' (K')^T` (section 2.2 and appendix B.1).

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`; K divides N (grouped queries).
        value: tensor of shape `(B, S, K, V)`.
        kernel: the kernel object that the fast operation takes.
        key_mask: boolean tensor of shape `(B, S)`, true where a key is visible.
        causal: whether query t sees keys 0..t only.

    Returns:
        Tensor of shape `(B, T, N, V)`; a row that sees no key is 0.
    """
    weights = attention_matrix(query, key, kernel, key_mask, causal)
    value = _one_head_per_query_head(value, query)
    return tf.einsum("bnts,bsnv->btnv", weights, value)


def attention_matrix(query, key, kernel, key_mask=None, causal=False):
    """The implied attention matrix `D^-1 Q' (K')^T` of equation 4.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`.
        kernel: the kernel object that the fast operation takes.
        key_mask: boolean tensor of shape `(B, S)`, true where a key is visible.
        causal: whether query t sees keys 0..t only.

    Returns:
        Tensor of shape `(B, N, T, S)`. Rows sum to 1; a row that sees no key is 0.
    """
    key = _one_head_per_query_head(key, query)
    visible = _visible(query, key, key_mask, causal)
    if _is_exponential(kernel):
        return _softmax_over_visible(log_kernel(query, key, kernel), visible)
    query_features = activation_features(query, kernel)
    key_features = activation_features(key, kernel)
    products = query_features[:, :, None] * key_features[:, None]
    products = tf.einsum("btsnm->bnts", products)
    products = tf.where(visible, products, tf.zeros_like(products))
    normalizer = tf.reduce_sum(products, axis=-1, keepdims=True)
    return tf.where(visible, tf.math.divide_no_nan(products, normalizer), 0)


def exact_softmax_attention(query, key, value, key_mask=None, causal=False):
    """Softmax attention, equation 1: what the softmax kernel approximates.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`.
        value: tensor of shape `(B, S, K, V)`.
        key_mask: boolean tensor of shape `(B, S)`, true where a key is visible.
        causal: whether query t sees keys 0..t only.

    Returns:
        Tensor of shape `(B, T, N, V)`; a row that sees no key is 0.
    """
    key = _one_head_per_query_head(key, query)
    value = _one_head_per_query_head(value, query)
    scores = tf.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
    weights = _softmax_over_visible(scores, _visible(query, key, key_mask, causal))
    return tf.einsum("bnts,bsnv->btnv", weights, value)


def windowed_attention(
    query,
    key,
    value,
    kernel,
    exact_window,
    log_gain,
    key_mask=None,
    causal=False,
    segment_ids=None,
):
    """Exact weights of near keys and estimated ones of far keys, under one normalizer.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; K divides N (grouped queries).
        value: tensor of shape `(B, T, K, V)`.
        kernel: a kernel of the softmax family.
        exact_window: int W; keys at less than this distance are near.
        log_gain: tensor of shape `(N,)`, the logarithm of what multiplies far weights.
        key_mask: boolean tensor of shape `(B, T)`, true where a key is visible.
        causal: whether query t sees keys 0..t only.
        segment_ids: int tensor of shape `(B, T)`; a query sees keys of its own run of
            equal ids only. Defaults to one run.

    Returns:
        Tensor of shape `(B, T, N, V)`; a row that sees no key is 0.
    """
    key, value = (_one_head_per_query_head(x, query) for x in (key, value))
    near = tf.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
    far = log_kernel(query, key, kernel) + log_gain[:, None, None]
    place = tf.range(query.shape[1])
    distance = tf.abs(place[:, None] - place)
    visible = _visible(query, key, key_mask, causal)
    if segment_ids is not None:
        ids = tf.convert_to_tensor(segment_ids)
        changes = tf.pad(ids[:, 1:] != ids[:, :-1], [[0, 0], [1, 0]])
        run = tf.cumsum(tf.cast(changes, tf.int32), axis=1)
        visible &= (run[:, :, None] == run[:, None])[:, None]
    logits = tf.where(distance < exact_window, near, far)
    return tf.einsum("bnts,bsnv->btnv", _softmax_over_visible(logits, visible), value)


def recurrent_attention(query, key, value, kernel, key_mask=None, state=None):
    """Causal attention as a recurrence over tokens: appendix B.1, stabilized.

    For each feature i the sums `sum_s exp(l_k[s, i] - r_i) (v_s, 1)` are carried, where
    r_i is the largest log-feature so far. A fast causal operation can continue from the
    state returned here, and this function from the state of a fast operation.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`.
        value: tensor of shape `(B, T, K, V)`.
        kernel: the kernel object that the fast operation takes.
        key_mask: boolean tensor of shape `(B, T)`, true where a key is visible.
        state: None, or `(running_max, sums)` of shapes `(B, K, M)` and
            `(B, K, V + 1, M)`, the last row of `sums` belonging to the normalizer.

    Returns:
        Pair of a tensor of shape `(B, T, N, V)` and the state after the last token.
    """
    if key_mask is None:
        key_mask = tf.ones(tf.shape(key)[:2], tf.bool)
    exponential = _is_exponential(kernel)
    features = log_features if exponential else activation_features
    add, read = (_add_log, _read_log) if exponential else (_add, _read)
    query_features, key_features = features(query, kernel), features(key, kernel)
    if exponential:
        key_features += _log_weights(kernel, key.dtype)
    if state is None:
        state = _empty_state(kernel, key, value)
    outputs = []
    for t in range(query.shape[1]):
        value_and_one = tf.concat([value[:, t], tf.ones_like(value[:, t, :, :1])], -1)
        added = add(state, key_features[:, t], value_and_one)
        seen = key_mask[:, t, None, None]
        state = (
            tf.where(seen, added[0], state[0]),
            tf.where(seen[..., None], added[1], state[1]),
        )
        per_query_head = [_one_head_per_query_head(x, query, axis=1) for x in state]
        outputs.append(read(per_query_head, query_features[:, t]))
    return tf.stack(outputs, axis=1), state


def log_kernel(query, key, kernel):
    """Logarithm of the estimate of `exp(q . k / sqrt(H))`, Lemma 1 (equation 7).

    The mean over features of `exp(w . x - |x|^2 / 2) exp(w . y - |y|^2 / 2)` with
    `x = q H^(-1/4)`, `y = k H^(-1/4)`, times the weight of the feature. It is unbiased
    when the rows w (with their weights) follow N(0, I_H).

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, N, H)`.
        kernel: a kernel of the softmax family.

    Returns:
        Tensor of shape `(B, N, T, S)`.
    """
    query_logs = log_features(query, kernel)
    key_logs = log_features(key, kernel) + _log_weights(kernel, key.dtype)
    products = query_logs[:, :, None] + key_logs[:, None]
    logs = tf.reduce_logsumexp(products, axis=-1)
    logs -= tf.math.log(tf.cast(query_logs.shape[-1], logs.dtype))
    return tf.transpose(logs, (0, 3, 1, 2))


def log_features(inputs, kernel):
    """Logarithms `w . x - |x|^2 / 2` of the positive features of Lemma 1.

    Args:
        inputs: tensor of shape `(B, L, N, H)`, queries or keys.
        kernel: a kernel of the softmax family; its full projection matrix is used.

    Returns:
        Tensor of shape `(B, L, N, M)`.
    """
    scaled = inputs * inputs.shape[-1] ** -0.25
    projection = tf.cast(kernel.projection_matrix, inputs.dtype)
    half_norms = tf.reduce_sum(scaled**2, axis=-1, keepdims=True) / 2
    return tf.einsum("blnh,mh->blnm", scaled, projection) - half_norms


def activation_features(inputs, kernel):
    """Features `f(w . x) + epsilon` of generalized attention, equation 5 with h = 1.

    Args:
        inputs: tensor of shape `(B, L, N, H)`, queries or keys.
        kernel: a kernel with an `activation`; without a projection, w are unit vectors.

    Returns:
        Tensor of shape `(B, L, N, M)`.
    """
    if isinstance(kernel, EluKernel):
        return tf.nn.elu(inputs) + 1.0
    projected = inputs * inputs.shape[-1] ** -0.25
    if isinstance(kernel, TaylorKernel):
        return taylor_features(projected)
    if kernel.projection_matrix is not None:
        projection = tf.cast(kernel.projection_matrix, inputs.dtype)
        projected = tf.einsum("blnh,mh->blnm", projected, projection)
    return kernel.activation(projected) + kernel.epsilon


def taylor_features(x):
    """1, every element, and every product of two, a square divided by sqrt(2)."""
    elements = tf.unstack(x, axis=-1)
    features = [tf.ones_like(elements[0]), *elements]
    for i, first in enumerate(elements):
        features.append(first * first / 2**0.5)
        features.extend(first * second for second in elements[i + 1 :])
    return tf.stack(features, -1)


def _is_exponential(kernel):
    return isinstance(kernel, ExponentialKernel)


def _log_weights(kernel, dtype):
    if kernel.log_weights is None:
        return tf.zeros((), dtype)
    return tf.cast(kernel.log_weights, dtype)


def _add_log(state, key_logs, value_and_one):
    """One more key, `(B, K, M)`, in the sums of the softmax kernel."""
    running_max, sums = state
    new_max = tf.maximum(running_max, key_logs)
    sums *= tf.exp(running_max - new_max)[:, :, None]
    token = tf.exp(key_logs - new_max)[:, :, None]
    return new_max, sums + value_and_one[..., None] * token


def _read_log(state, query_logs):
    """What one query, `(B, N, M)`, reads: a mean over features of means of values."""
    running_max, sums = state
    normalizer = sums[:, :, -1]
    some = normalizer > 0
    normalizer = tf.where(some, normalizer, 1)
    logs = query_logs + running_max + tf.math.log(normalizer)
    weights = _softmax_over_visible(logs, some)
    return tf.einsum("bnm,bnvm->bnv", weights, sums[:, :, :-1] / normalizer[:, :, None])


def _add(state, key_features, value_and_one):
    return state[0], state[1] + value_and_one[..., None] * key_features[:, :, None]


def _read(state, query_features):
    products = tf.einsum("bnm,bnvm->bnv", query_features, state[1])
    return tf.math.divide_no_nan(products[..., :-1], products[..., -1:])


def _one_head_per_query_head(inputs, query, axis=2):
    return tf.repeat(inputs, query.shape[2] // inputs.shape[axis], axis=axis)


def _visible(query, key, key_mask, causal):
    shape = (tf.shape(query)[0], 1, tf.shape(query)[1], tf.shape(key)[1])
    visible = tf.ones(shape, tf.bool)
    if causal:
        visible = tf.linalg.band_part(visible, -1, 0)
    if key_mask is not None:
        visible = visible & key_mask[:, None, None]
    return visible


def _softmax_over_visible(logits, visible):
    """Softmax over the last axis that gives 0, and no NaN, where nothing is visible."""
    lowest = tf.constant(logits.dtype.min, logits.dtype)
    largest = tf.reduce_max(tf.where(visible, logits, lowest), axis=-1, keepdims=True)
    shifted = tf.where(visible, logits - tf.stop_gradient(largest), 0)
    weights = tf.where(visible, tf.exp(shifted), 0)
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, -1, keepdims=True))


def _empty_state(kernel, key, value):
    batch, heads = tf.shape(value)[0], value.shape[2]
    value_dim, num_features = value.shape[-1], kernel.num_features(key.shape[-1])
    no_key_yet = tf.constant(-1e30, value.dtype)
    running_max = tf.fill((batch, heads, num_features), no_key_yet)
    sums = tf.zeros((batch, heads, value_dim + 1, num_features), value.dtype)
    return running_max, sums
