"""Means and covariances of the queries and keys of an attention layer."""

import typing

import numpy as np
import tensorflow as tf

# So much of its mean variance is added to every direction of a covariance.
RIDGE = 0.01
# The least variance of a head, as a share of its mean square: less is rounding.
CONSTANT = 1e-6


class Basis(typing.NamedTuple):
    """Linear maps of queries and keys that leave their softmax attention as it is.

    Queries become q A and keys (k - m) B with A B^T = 1: logits lose what depends on
    the query alone.

    Attributes:
        of_queries: array A `(K, H, H)`, for each key-value head.
        of_keys: array B `(K, H, H)`.
        mean: array m `(K, H)`.
    """

    of_queries: np.ndarray
    of_keys: np.ndarray
    mean: np.ndarray


class Moments:
    """Sums over tokens; query heads that share a key head are one.

    Args:
        num_heads: int K, the key-value heads.
        key_dim: int H.
    """

    def __init__(self, num_heads, key_dim):
        self.num_heads = num_heads
        self.queries = _Sums(num_heads, key_dim)
        self.keys = _Sums(num_heads, key_dim)

    def add(self, query, key, inputs):
        """Adds the tokens of a call that are there.

        Args:
            query: tensor `(B, T, N, H)`.
            key: tensor `(B, S, K, H)`.
            inputs: the `Inputs` of the layer.
        """
        grouped = tf.reshape(
            query, (*query.shape[:2], self.num_heads, -1, query.shape[3])
        )
        for group in tf.unstack(grouped, axis=3):
            self.queries.add(_tokens(group, inputs.query_mask))
        self.keys.add(_tokens(key, inputs.visible.key_mask))

    def as_it_is(self):
        """The `Basis` that changes nothing."""
        mean = np.zeros_like(self.keys.mean())
        same = np.broadcast_to(np.eye(mean.shape[1]), (*mean.shape, mean.shape[1]))
        return Basis(same, same, mean)

    def centred(self):
        """The `Basis` in which the mean of keys is 0."""
        return self.as_it_is()._replace(mean=self.keys.mean())

    def balanced(self, centre=True):
        """The `Basis` in which queries and keys have the same covariance, diagonal.

        Variances fall from the first element to the last. The product of the two
        variances, on which the error of random features depends, is the least there is.

        Args:
            centre: bool, whether the mean of keys becomes 0 as well.
        """
        of_queries, of_keys = [], []
        covariances = zip(self.queries.covariance(), self.keys.covariance())
        for pair in covariances:
            x, y = (np.linalg.cholesky(covariance) for covariance in pair)
            u, sizes, v = np.linalg.svd(y.T @ x)
            of_queries.append(y @ u / np.sqrt(sizes))
            of_keys.append(x @ v.T / np.sqrt(sizes))
        mean = (self.centred() if centre else self.as_it_is()).mean
        return Basis(np.stack(of_queries), np.stack(of_keys), mean)


class _Sums:
    def __init__(self, num_heads, size):
        self.number = 0
        self.first = np.zeros((num_heads, size))
        self.second = np.zeros((num_heads, size, size))

    def add(self, tokens):
        """Adds an array `(tokens, K, H)`."""
        tokens = tokens.astype(np.float64)
        self.number += len(tokens)
        self.first += tokens.sum(0)
        of_heads = np.ascontiguousarray(tokens.swapaxes(0, 1))
        self.second += of_heads.swapaxes(1, 2) @ of_heads

    def mean(self):
        return self.first / max(self.number, 1)

    def covariance(self):
        mean = self.mean()
        second = self.second / max(self.number, 1)
        found = second - np.einsum("kh,kg->khg", mean, mean)
        # heads that were pruned are constant, or 0
        traces = [np.trace(x, axis1=1, axis2=2) for x in (found, second)]
        size = np.maximum(traces[0], CONSTANT * traces[1])
        size = np.where(size > 0, size, 1.0)[:, np.newaxis, np.newaxis]
        return found + RIDGE * size * np.eye(mean.shape[1]) / mean.shape[1]


def _tokens(heads, mask):
    """The tokens of `(B, T, K, H)` that are there, an array `(tokens, K, H)`."""
    heads = heads.numpy()
    if mask is None:
        return heads.reshape(-1, *heads.shape[2:])
    return heads[np.broadcast_to(mask, heads.shape[:2])]
