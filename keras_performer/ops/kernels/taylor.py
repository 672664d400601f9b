"""The second-order Taylor polynomial of the softmax kernel, computed exactly."""

import functools
import math

import numpy as np
import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel, flat_matmul
from keras_performer.ops.shapes import masked


class TaylorKernel(Kernel):
    """The kernel 1 + t + t^2 / 2 with t = q . k / sqrt(H), which is never below 1/2.

    Its 1 + H + H (H + 1) / 2 features are 1, the elements of x = q / H^(1/4), and their
    products in pairs. Nothing is random.

    Args:
        rank: int R, use only the first R elements of q and k, as if the others were 0.
            This gives 1 + R + R (R + 1) / 2 features. Defaults to `None`, all elements.

    Reference:
        Arora et al. 2024, Simple linear attention language models balance the
        recall-throughput tradeoff, arXiv 2402.18668 (the Taylor feature map).

    Example:

    >>> TaylorKernel().num_features(head_dim=16)
    153
    """

    def __init__(self, rank: int | None = None) -> None:
        super().__init__({})
        self.rank = rank

    def num_features(self, head_dim: int) -> int:
        rank = head_dim if self.rank is None else min(self.rank, head_dim)
        return 1 + rank + rank * (rank + 1) // 2

    def query_features(self, a, r):
        one = tf.ones_like(a[..., :1])
        return self._features(one, a), tf.zeros_like(one)

    def key_features(self, b, r, mask):
        one = tf.ones_like(b[..., :1]) if mask is None else tf.cast(mask, b.dtype)
        return self._features(one, masked(b, mask))

    def pair_weights(self, p, e):
        # 1 + t + t^2 / 2 = (1 + s^2) / 2 with s = 1 + t; y[..., 0] and s of masked keys
        # are 0
        x, y = self._first(p), self._first(e)
        s = tf.matmul(x, y, transpose_b=True)
        return (s * s + tf.linalg.matrix_transpose(y[..., :1])) * 0.5

    def pull_pairs(self, p, e, dweights):
        x, y = self._first(p), self._first(e)
        ds = dweights * tf.matmul(x, y, transpose_b=True)
        left_out = p.shape[-1] - x.shape[-1]
        return (
            _with_zeros(tf.matmul(ds, y), left_out),
            _with_zeros(tf.matmul(ds, x, transpose_a=True), left_out),
        )

    def query_gradient(self, a, features, dfeatures):
        return self._gradient(a, dfeatures)

    def key_gradient(self, b, features, dfeatures, mask):
        return masked(self._gradient(b, dfeatures), mask)

    def _features(self, one, x):
        x = x[..., : self.rank]
        first, second = (tf.constant(s, x.dtype) for s in _pairs(x.shape[-1]))
        products = flat_matmul(x, first) * flat_matmul(x, second)
        return tf.concat([one, x, products], -1)

    def _first(self, features):
        """Returns the features 1 and x, which determine the others."""
        # M = (R + 1) (R + 2) / 2, so R + 1 = floor(sqrt(2 M))
        return features[..., : math.isqrt(2 * features.shape[-1])]

    def _gradient(self, x, dfeatures):
        head_dim, x = x.shape[-1], x[..., : self.rank]
        first, second = (tf.constant(s, x.dtype) for s in _pairs(x.shape[-1]))
        _, dx, d = tf.split(dfeatures, (1, x.shape[-1], first.shape[-1]), -1)
        dx += flat_matmul(d * flat_matmul(x, second), first, transpose=True)
        dx += flat_matmul(d * flat_matmul(x, first), second, transpose=True)
        return _with_zeros(dx, head_dim - dx.shape[-1])


def _with_zeros(x, count):
    """Appends `count` zeros to the last axis."""
    return tf.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, count)])


@functools.cache
def _pairs(head_dim):
    """Returns matrices to select elements of products: `(x @ first) * (x @ second)`.

    In t^2 / 2, squares have the factor 1/2, products of two elements the factor 1.
    """
    rows, columns = np.triu_indices(head_dim)
    first, second = (np.eye(head_dim)[index].T for index in (rows, columns))
    return first * np.where(rows == columns, 0.5**0.5, 1.0), second
