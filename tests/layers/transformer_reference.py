"""Layers of a Transformer with exact attention, in NumPy and float64."""

import numpy as np


def normalized(x, norm):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + norm.epsilon)
    return scaled * norm.gamma.numpy() + norm.beta.numpy()


def multi_head_attention(layer, query, value, visible):
    """Exact attention with the dense weights of a layer.

    Args:
        layer: an attention layer with biases.
        query, value: arrays `(B, T, dim)` and `(B, S, dim)`.
        visible: bool array that broadcasts to `(B, T, S)`.
    """
    wq, bq, wk, bk, wv, bv, wo, bo = (
        np.asarray(w, "float64") for w in layer.get_weights()[:8]
    )
    q = np.einsum("btd,dnh->bnth", query, wq) + bq[:, None]
    k = np.einsum("bsd,dnh->bnsh", value, wk) + bk[:, None]
    v = np.einsum("bsd,dnh->bnsh", value, wv) + bv[:, None]
    logits = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(q.shape[-1])
    logits = np.where(np.asarray(visible)[:, None], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = np.einsum("bnts,bnsh->btnh", weights, v)
    return np.einsum("btnh,nhd->btd", attended, wo) + bo


def add(layer, norm, x, part):
    """Tokens x with what a part of a layer makes of them."""
    if layer.normalize_first:
        return x + part(normalized(x, norm))
    return normalized(x + part(x), norm)


def feed_forward(layer, x):
    def part(x):
        hidden = x @ layer.expand.kernel.numpy() + layer.expand.bias.numpy()
        hidden = np.maximum(hidden, 0)
        return hidden @ layer.contract.kernel.numpy() + layer.contract.bias.numpy()

    return add(layer, layer.feedforward_norm, x, part)


def encoder(layer, x, visible):
    """Output of a `PerformerEncoder` with exact attention."""

    def attend(x):
        return multi_head_attention(layer.attention, x, x, visible)

    return feed_forward(layer, add(layer, layer.attention_norm, x, attend))


def decoder(layer, x, visible, encoded=None, encoded_visible=None):
    """Output of a `PerformerDecoder` with exact attention."""

    def attend(x):
        return multi_head_attention(layer.self_attention, x, x, visible)

    def attend_to_encoder(x):
        cross = layer.cross_attention
        return multi_head_attention(cross, x, encoded, encoded_visible)

    x = add(layer, layer.self_attention_norm, x, attend)
    if encoded is not None:
        x = add(layer, layer.cross_attention_norm, x, attend_to_encoder)
    return feed_forward(layer, x)
