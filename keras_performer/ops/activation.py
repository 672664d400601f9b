"""The kernel of generalized attention: features that an activation makes."""

import tensorflow as tf

from keras_performer.ops.kernels import WithoutGauge, constant, flat_matmul, scale


class ActivationKernel(WithoutGauge):
    """Features `activation(W x) + epsilon` of the paper's generalized attention.

    A different model from softmax attention, not an approximation of it.

    Args:
        projection_matrix: tensor `(M, H)`, or `None` for `activation(x) + epsilon`.
        activation: function of a tensor, applied to every element.
        epsilon: float added to each feature. 1e-3 as in the paper's code.

    Reference:
        arXiv 2009.14794, section 2.2 and appendix B.3 (generalized attention).
    """

    num_parts = 1

    def __init__(self, projection_matrix, activation, epsilon=1e-3):
        self.activation = activation
        self.epsilon = epsilon
        self.projection_matrix = None
        if projection_matrix is not None:
            self.projection_matrix = constant(projection_matrix)
            self._weights = self.projection_matrix * scale(self.projection_matrix)

    def astype(self, dtype):
        """The same kernel computing in `dtype`."""
        w = self.projection_matrix
        if w is None or dtype == w.dtype:
            return self
        w = tf.cast(w, dtype)
        return ActivationKernel(w, self.activation, self.epsilon)

    def in_one_part(self):
        return self

    def project_queries(self, x):
        if self.projection_matrix is None:
            return x * scale(x)
        return flat_matmul(x, self._weights, transpose=True)

    def project_keys(self, y, mask):
        return (self.project_queries(y),)

    def pull_queries(self, du):
        if self.projection_matrix is None:
            return du * scale(du)
        return flat_matmul(du, self._weights)

    def pull_keys(self, du, y, v, dv):
        return self.pull_queries(du)

    def key_features(self, b, r, mask):
        features = self.activation(b[0]) + self.epsilon
        if mask is not None:
            features = tf.where(mask, features, tf.zeros_like(features))
        return (features,)

    def query_features(self, a, r):
        return (self.activation(a) + self.epsilon,), tf.zeros_like(a[..., :1])

    def query_gradient(self, a, features, dfeatures):
        return self._derivative(a, dfeatures[0])

    def key_gradient(self, b, features, dfeatures, mask):
        dfeatures = dfeatures[0]
        if mask is not None:
            dfeatures = tf.where(mask, dfeatures, tf.zeros_like(dfeatures))
        return self._derivative(b[0], dfeatures)

    def _derivative(self, a, dfeatures):
        with tf.GradientTape() as tape:
            tape.watch(a)
            features = self.activation(a)
        return tape.gradient(
            features,
            a,
            output_gradients=dfeatures,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
