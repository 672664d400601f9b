"""The kernel of the Linear Transformer."""

import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.shapes import masked


class EluKernel(Kernel):
    """Features elu(x) + 1 of queries and keys without projection.

    A feature is x + 1 if x is positive, otherwise exp(x). Unlike in `ActivationKernel`,
    queries and keys are not divided by H^(1/4), and no epsilon is added to features.

    Reference:
        Katharopoulos et al. 2020, Transformers are RNNs, arXiv 2006.16236, equation 7.

    Example:

    >>> features, _ = EluKernel().query_features(tf.constant([[[3.0, 0.0]]]), None)
    >>> features.numpy().tolist()
    [[[4.0, 1.0]]]
    """

    def __init__(self) -> None:
        super().__init__({})

    def project_queries(self, x):
        return x

    def query_features(self, a, r):
        return _elu_plus_one(a), tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        return masked(_elu_plus_one(b), mask)


def _elu_plus_one(x):
    # elu(x) + 1 would round away features below 1e-7 in float32
    return tf.where(x > 0, x + 1.0, tf.exp(tf.minimum(x, 0.0)))
