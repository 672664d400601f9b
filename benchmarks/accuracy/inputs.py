"""Queries, keys and values to estimate attention of, and the exact answer."""

import typing

import numpy as np


class Inputs(typing.NamedTuple):
    """One head, all float64 arrays of shape `(L, H)`."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def draw(seed, length, head_dim, std):
    """Queries and keys N(0, std^2), so that logits have std^2; values N(0, 1).

    The paper says no more of its inputs than "appropriately normalized" (section 4.2),
    so their scale is a part of every result.
    """
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, length, head_dim))
    return Inputs(std * query, std * key, value)


def exact_weights(inputs):
    """The attention matrix, rows sum to 1."""
    scores = inputs.query @ inputs.key.T / inputs.query.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
