"""LSH attention from the definition, set by set, in NumPy."""

import numpy as np


def buckets(x, rotations):
    """Computes argmax([x R; -x R]) for `(B, T, N, H)` and `(rounds, N, H, half)`."""
    rotated = np.einsum("btnh,rnhc->btnrc", x, rotations)
    return np.concatenate([rotated, -rotated], -1).argmax(-1)


def sees(buckets, window, seen=None, causal=False, segments=None):
    """Returns the tokens that each token sees, bool `(B, N, T, T)`: equations 4, 6."""
    batch, length, heads, rounds = buckets.shape
    seen = np.ones((batch, length), bool) if seen is None else seen
    segments = np.zeros((batch, length), int) if segments is None else segments
    matrix = np.zeros((batch, heads, length, length), bool)
    for b, n, i in np.ndindex(batch, heads, length):
        if not seen[b, i]:
            continue
        for r in range(rounds):
            its = buckets[b, :, n, r]
            bucket = [
                j
                for j in range(length)
                if seen[b, j] and (its[j], segments[b, j]) == (its[i], segments[b, i])
            ]
            place = bucket.index(i)
            earlier = bucket[max(place - window + 1, 0) : place]
            later = [] if causal else bucket[place + 1 : place + window]
            matrix[b, n, i, earlier + later] = True
        if not matrix[b, n, i].any():
            matrix[b, n, i, i] = True
    return matrix


def weights(query, matrix):
    """Computes equation 12, `(B, N, T, T)`; its sum counts each token once."""
    query = np.asarray(query, "float64")
    key = query / np.linalg.norm(query, axis=-1, keepdims=True)
    logits = np.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * matrix
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))


def attention(query, value, buckets, window, **options):
    """Computes attended values, `(B, T, N, V)`."""
    matrix = sees(np.asarray(buckets), window, **options)
    return np.einsum("bnts,bsnv->btnv", weights(query, matrix), value)
