"""PerformerAttention again, in NumPy and float64, from the weights of a layer."""

import numpy as np


def softmax_features(projected, x):
    """Lemma 1 of the paper, without its 1/sqrt(M): the normalizer cancels it."""
    return np.exp(projected - np.sum(x**2, -1, keepdims=True) / 2)


def performer_attention(
    layer, query, value=None, key=None, key_mask=None, causal=False, features=None
):
    """The output of `layer` for one input `(B, T, dim)`, and the attention matrix.

    Args:
        layer: a built `PerformerAttention` with biases.
        query, value, key: arrays, as for the layer.
        key_mask: bool array `(B, S)`.
        causal: bool.
        features: function of `(W x, x)`. Defaults to that of the softmax kernel.
    """
    value = query if value is None else value
    key = value if key is None else key
    features = softmax_features if features is None else features
    wq, bq, wk, bk, wv, bv, wo, bo = (
        np.asarray(w, "float64") for w in layer.get_weights()[:8]
    )
    q = np.einsum("btd,dnh->bnth", query, wq) + bq[:, None]
    k = np.einsum("bsd,dkh->bksh", key, wk) + bk[:, None]
    v = np.einsum("bsd,dkv->bksv", value, wv) + bv[:, None]
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    q, k = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
    if layer.projection_matrix is None:
        projected = [q, k]
    else:
        matrix = np.asarray(layer.projection_matrix, "float64")
        projected = [x @ matrix.T for x in (q, k)]
    weights = np.einsum(
        "bntm,bnsm->bnts", features(projected[0], q), features(projected[1], k)
    )
    if key_mask is not None:
        weights = weights * key_mask[:, None, None]
    if causal:
        weights = np.tril(weights)
    weights /= weights.sum(-1, keepdims=True)
    attended = np.einsum("bnts,bnsv->btnv", weights, v)
    return np.einsum("btnv,nvd->btd", attended, wo) + bo, weights
