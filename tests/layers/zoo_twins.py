"""Twins of the layers of the zoo, from the equations of their papers in NumPy.

Each function takes a built layer and returns its twin; see `tests.layers.twins`.
"""

import numpy as np
import scipy.special

from tests.layers.twins import heads, numbers, rotated, softmax, written


def everything(x):
    return np.ones(x.shape[:2], bool)


def attended(weights, x, sees, suffix=""):
    """Returns the matrix `(B, N, T, S)` of exact attention, and attended values.

    Args:
        weights: dict, as `twins.weights_of` returns it.
        x: array `(B, T, dim)`.
        sees: bool array that broadcasts to the matrix.
        suffix: str, the end of the names of the dense layers.
    """
    names = ("query", "key", "value")
    q, k, v = (heads(weights, name + suffix, x) for name in names)
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[3])
    matrix = softmax(logits, sees)
    return matrix, np.einsum("bnts,bsnv->btnv", matrix, v)


def longformer(layer):
    def twin(weights, x, key_mask=None, global_mask=None, scores=False):
        seen = everything(x) if key_mask is None else key_mask
        if global_mask is None:  # the first visible tokens
            global_mask = seen & (np.cumsum(seen, 1) <= layer.num_global_tokens)
        distance = np.subtract.outer(*[np.arange(x.shape[1])] * 2)
        sees = (np.abs(distance) < layer.sliding_window) | global_mask[:, :, None]
        sees = (sees | global_mask[:, None]) & seen[:, None]
        if layer.causal:
            sees &= distance >= 0
        matrix, values = attended(weights, x, sees[:, None])
        if layer.num_global_tokens:
            own, given = attended(weights, x, sees[:, None], "_global")
            matrix = np.where(global_mask[:, None, :, None], own, matrix)
            values = np.where(global_mask[:, :, None, None], given, values)
        return matrix if scores else written(weights, values)

    return twin


def big_bird(layer):
    """Returns the twin, which takes the random blocks from the layer."""

    def twin(weights, x, key_mask=None, scores=False):
        seen = everything(x) if key_mask is None else key_mask
        length, size, causal = x.shape[1], layer.block_size, layer.causal
        count, num_global = -(-length // size), layer.num_global_blocks
        some = [0, count - 1, 1, count - 2][:num_global]
        some = range(num_global) if causal else some
        table = layer.seen_blocks(length, causal).table.numpy()
        drawn = table[..., table.shape[-1] - layer.num_random_blocks :]
        sees = np.zeros((layer.num_key_value_heads, length, length), bool)
        for head, i, j in np.ndindex(sees.shape):
            row, column = i // size, j // size
            fixed = abs(row - column) < 2 or column in some
            to_all = row in some and not causal
            near = fixed or to_all or column in drawn[head, row]
            sees[head, i, j] = near and (j <= i or not causal)
        sees = np.repeat(sees, layer.num_heads // len(sees), 0)
        matrix, values = attended(weights, x, sees & seen[:, None, None])
        return matrix if scores else written(weights, values)

    return twin


def linformer(layer):
    """Returns the twin softmax(Q (E K)^T / sqrt(H)) F V."""

    def twin(weights, query, value=None, key_mask=None):
        value = query if value is None else value
        seen = everything(value) if key_mask is None else key_mask
        q = heads(weights, "query", query)
        group = q.shape[2] // layer.num_key_value_heads
        e = weights["key_projection"]
        mixed = []
        for name, matrix in (("key", e), ("value", weights.get("value_projection", e))):
            x = heads(weights, name, value) * seen[..., None, None]
            matrix = np.broadcast_to(matrix, (x.shape[2], *matrix.shape[-2:]))
            mixed.append(np.einsum("nsm,bsnh->bmnh", matrix[:, : x.shape[1]], x))
        k, v = (np.repeat(x, group, 2) for x in mixed)
        logits = np.einsum("btnh,bmnh->bntm", q, k) / np.sqrt(q.shape[3])
        return written(weights, np.einsum("bntm,bmnv->btnv", softmax(logits), v))

    return twin


def synthesizer(layer):
    """Returns the twin softmax(logits of the kind) G(X)."""

    def twin(weights, query, value=None, key_mask=None, use_causal_mask=False):
        value = query if value is None else value
        length, num_keys = query.shape[1], value.shape[1]
        if "alignment" in weights:
            logits = weights["alignment"]
        elif "query_factor" in weights:
            factors = weights["query_factor"], weights["key_factor"]
            logits = np.einsum("nir,njr->nij", *factors)
        else:
            hidden = np.maximum(heads(weights, "query", query), 0)
            logits = np.einsum("btnh,nhs->bnts", hidden, weights["place_kernel"])
            logits += weights["place_bias"][:, None]
        logits = logits[..., :length, :num_keys]
        seen = everything(value) if key_mask is None else key_mask
        seen = seen[:, None, None]
        if use_causal_mask:
            seen = seen & np.tri(length, num_keys, dtype=bool)
        shape = np.broadcast_shapes(logits.shape, seen.shape)
        v = heads(weights, "value", value)
        v = np.repeat(v, layer.num_heads // v.shape[2], 2)
        matrix = softmax(np.broadcast_to(logits, shape), seen)
        return written(weights, np.einsum("bnts,bsnv->btnv", matrix, v))

    return twin


def buckets(x, rotations):
    """Computes argmax([x R; -x R]) for `(B, T, N, H)` and `(rounds, N, H, half)`."""
    rotated = np.einsum("btnh,rnhc->btnrc", x, rotations)
    return np.concatenate([rotated, -rotated], -1).argmax(-1)


def sees(buckets, window, seen, causal, segments):
    """Returns the tokens that each token sees, bool `(B, N, T, T)`: equations 4, 6."""
    batch, length, heads, rounds = buckets.shape
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


def reformer(layer):
    """Returns the twin by equation 12, whose sum counts each token once."""

    def twin(weights, x, key_mask=None, segment_ids=None):
        query, value = (heads(weights, name, x) for name in ("query", "value"))
        if layer.rotary:  # before hashing
            query = rotated(query, np.arange(x.shape[1])[None], True)
        seen = everything(x) if key_mask is None else key_mask
        ids = np.zeros(x.shape[:2]) if segment_ids is None else segment_ids
        hashed = buckets(query, np.asarray(layer.rotations, "float64"))
        given = layer.sliding_window, seen, layer.causal, numbers(ids)
        key = query / np.linalg.norm(query, axis=-1, keepdims=True)
        logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[3])
        matrix = softmax(logits, sees(hashed, *given))
        return written(weights, np.einsum("bnts,bsnv->btnv", matrix, value))

    return twin


# -- Sinkhorn, block by block.


def finite(totals):
    return np.where(np.isneginf(totals), 0, totals)


def permutation(logits, num_iterations, some, causal):
    """Computes P of one head, `(n, n)`, by normalizing rows and columns in turn."""
    earlier = np.tri(len(logits), k=-1, dtype=bool)
    log_p = np.where(some & (earlier | (not causal)), logits, -np.inf)

    def less_rows(log_p):
        return log_p - finite(np.logaddexp.reduce(log_p, 1, keepdims=True))

    for _ in range(num_iterations):
        log_p = less_rows(log_p)
        if causal:
            log_p = log_p - finite(np.logaddexp.accumulate(log_p, 0))
        else:
            log_p[some] -= finite(np.logaddexp.reduce(log_p[some], 0))
    return np.exp(less_rows(log_p))


def sinkhorn_matrix(layer, weights, q, k, seen):
    """Computes `(N, T, T)` of one sequence; q is `(T, N, H)`, k is `(T, K, H)`."""
    size, length, causal = layer.block_size, len(q), layer.causal
    tokens = np.arange(length)
    block, place = tokens // size, tokens % size
    n = block[-1] + 1
    some = np.array([seen[block == i].any() for i in range(n)])
    # the sum of a block is over its own keys; if causal, over keys up to its first one
    counted = tokens <= size * np.arange(n)[:, None]
    counted = seen & (counted if causal else block == np.arange(n)[:, None])
    full = np.zeros((q.shape[1], length, length))
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        logits = counted @ k[:, group] @ weights["sort_kernel"][group, :, :n]
        p = permutation(logits / layer.temperature, layer.num_iterations, some, causal)
        for t in range(length):
            sees = seen & (block == block[t]) & ((tokens <= t) | (not causal))
            # keys of the own block, and for each position an average over blocks
            shares = (place == np.arange(size)[:, None]) * seen * p[block[t], block]
            shares = np.concatenate([np.eye(length)[sees], shares])
            totals = shares.sum(1)
            if totals.any():
                shares, totals = shares[totals > 0], totals[totals > 0]
                means = shares / totals[:, None]
                dots = means @ k[:, group] @ q[t, head] / np.sqrt(q.shape[2])
                full[head, t] = softmax(dots + np.log(totals)) @ means
    return full


def sinkhorn(layer):
    def twin(weights, x, key_mask=None, scores=False):
        q, k, v = (heads(weights, name, x) for name in ("query", "key", "value"))
        seen = everything(x) if key_mask is None else key_mask
        rows = zip(q, k, seen)
        full = np.array([sinkhorn_matrix(layer, weights, *row) for row in rows])
        v = np.repeat(v, q.shape[2] // v.shape[2], axis=2)
        return (
            full if scores else written(weights, np.einsum("bnts,bsnv->btnv", full, v))
        )

    return twin


# -- Layers that mix tokens by their positions.


def zeroed(x, mask):
    return x if mask is None else x * mask[..., None]


def fourier(layer):
    """Returns a twin: the real part of the sum over tokens and channels, by terms."""

    def twin(weights, x, mask=None):
        tokens, channels = np.arange(x.shape[1]), np.arange(x.shape[2])
        turns = np.multiply.outer(tokens, tokens)[:, None, :, None] / len(tokens)
        turns = turns + np.multiply.outer(channels, channels)[:, None] / len(channels)
        waves = np.cos(2 * np.pi * turns)
        if layer.norm == "ortho":
            waves /= np.sqrt(len(tokens) * len(channels))
        return zeroed(np.einsum("tcsd,bsd->btc", waves, zeroed(x, mask)), mask)

    return twin


def token_mixing(layer):
    """Returns a twin: W2 gelu(W1 x) over the first tokens, for each channel."""

    def twin(weights, x, mask=None):
        length = x.shape[1]
        first = weights["expand_kernel"][:length]
        hidden = np.einsum("btc,th->bhc", zeroed(x, mask), first)
        hidden += weights["expand_bias"][:, None]
        hidden *= scipy.special.ndtr(hidden)  # gelu
        mixed = np.einsum("bhc,ht->btc", hidden, weights["contract_kernel"])
        mixed += weights["contract_bias"][:, None]
        return zeroed(mixed[:, :length], mask)

    return twin


def spatial_gating(layer):
    """Returns a twin: Z1 * (W norm(Z2) + b) between two dense layers."""

    def twin(weights, x, mask=None):
        z = x @ weights["expand/kernel"] + weights["expand/bias"]
        z *= scipy.special.ndtr(z)  # gelu
        z1, z2 = np.split(z, 2, -1)
        mean, variance = z2.mean(-1, keepdims=True), z2.var(-1, keepdims=True)
        z2 = (z2 - mean) / np.sqrt(variance + layer.norm.epsilon)
        z2 = zeroed(z2 * weights["norm/gamma"] + weights["norm/beta"], mask)
        kernel = weights["spatial_kernel"][: x.shape[1], : x.shape[1]]
        kernel = np.tril(kernel) if layer.causal else kernel
        gate = np.einsum("ts,bsc->btc", kernel, z2)
        gate += weights["spatial_bias"][: x.shape[1], None]
        y = z1 * gate @ weights["contract/kernel"] + weights["contract/bias"]
        return zeroed(y, mask)

    return twin
