"""The estimate that the paper gave up: sines and cosines. A control, and no layer's.

exp(x . y) = exp(|x|^2 / 2) E[cos(w . (x - y))] exp(|y|^2 / 2): the features are not
positive, so that a sum of weights can come close to zero, or be negative.
"""

import numpy as np


def attention(inputs, rows):
    """Attention with two features, a cosine and a sine, for each row w.

    Args:
        inputs: `Inputs`.
        rows: array of shape `(m, H)`.

    Returns:
        float64 array of shape `(L, H)`.
    """
    scale = inputs.query.shape[-1] ** -0.25
    x, y = scale * inputs.query, scale * inputs.key
    # exp(|x|^2 / 2) of a query cancels; one factor for all keys does too
    half_norms = (y**2).sum(-1, keepdims=True) / 2
    weighted = features(y, rows) * np.exp(half_norms - half_norms.max())
    ones = np.ones_like(inputs.value[:, :1])
    sums = weighted.T @ np.concatenate([inputs.value, ones], -1)
    answers = features(x, rows) @ sums
    return answers[:, :-1] / answers[:, -1:]


def features(x, rows):
    projected = x @ rows.T
    return np.concatenate([np.cos(projected), np.sin(projected)], -1)


def softmax_kernel(x, y, rows):
    """Estimates of exp(x . y), one for each group of rows.

    Args:
        x, y: arrays of shape `(H,)`.
        rows: array of shape `(groups, m, H)`.
    """
    cosines = np.cos(rows @ (x - y)).mean(-1)
    return np.exp((x @ x + y @ y) / 2) * cosines
