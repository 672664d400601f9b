"""The second-order Taylor polynomial of the softmax kernel, exactly."""

import functools

import numpy as np
import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel, scale


class TaylorKernel(Kernel):
    """The kernel 1 + t + t^2 / 2 of t = q . k / sqrt(H), which is never below 1/2.

    Its features are 1, the elements of x = q / H^(1/4), and their products in pairs:
    1 + H + H (H + 1) / 2 of them, nothing drawn at random.

    Args:
        rank: int R; only the first R elements of q and k count, as if the others were
            0, in 1 + R + R (R + 1) / 2 features. Defaults to all.

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
        return (self._features(a),), tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        features = self._features(b[0])
        if mask is not None:
            features = tf.where(mask, features, tf.zeros_like(features))
        return (features,)

    def query_gradient(self, a, features, dfeatures):
        return self._gradient(a, dfeatures[0])

    def key_gradient(self, b, features, dfeatures, mask):
        dfeatures = dfeatures[0]
        if mask is not None:
            dfeatures = tf.where(mask, dfeatures, tf.zeros_like(dfeatures))
        return (self._gradient(b[0], dfeatures),)

    def pull_queries(self, x, da):
        return da * scale(da), []

    def pull_keys(self, y, mask, db, v, dv):
        return db[0] * scale(db[0]), []

    def _features(self, x):
        x = x[..., : self.rank]
        first, second = (tf.constant(s, x.dtype) for s in _pairs(x.shape[-1]))
        products = tf.matmul(x, first) * tf.matmul(x, second)
        return tf.concat([tf.ones_like(x[..., :1]), x, products], -1)

    def _gradient(self, x, dfeatures):
        head_dim, x = x.shape[-1], x[..., : self.rank]
        first, second = (tf.constant(s, x.dtype) for s in _pairs(x.shape[-1]))
        _, dx, d = tf.split(dfeatures, (1, x.shape[-1], first.shape[-1]), -1)
        dx += tf.matmul(d * tf.matmul(x, second), first, transpose_b=True)
        dx += tf.matmul(d * tf.matmul(x, first), second, transpose_b=True)
        left_out = head_dim - dx.shape[-1]
        return tf.pad(dx, [(0, 0)] * (len(dx.shape) - 1) + [(0, left_out)])


@functools.cache
def _pairs(head_dim):
    """Which elements make which product, as matrices: `(x @ first) * (x @ second)`.

    A square counts half in t^2 / 2, a product of two elements whole.
    """
    rows, columns = np.triu_indices(head_dim)
    first, second = (np.eye(head_dim)[index].T for index in (rows, columns))
    return first * np.where(rows == columns, 0.5**0.5, 1.0), second
