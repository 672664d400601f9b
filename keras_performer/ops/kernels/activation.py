"""The kernel of generalized attention: an activation makes the features."""

from collections.abc import Callable

import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.shapes import TensorLike, masked


class ActivationKernel(Kernel):
    """Features `activation(W x) + epsilon` of the paper's generalized attention.

    This kernel gives a different model from softmax attention, not an estimate of it.

    Args:
        projection_matrix: tensor `(M, H)`, or `(K, M, H)` with one for each key-value
            head, or `None` for `activation(x) + epsilon`.
        activation: function of a tensor, applied to every element.
        epsilon: float, added to each feature; 1e-3 as in the paper's code. Defaults to
            `0.001`.
        trainable: bool, whether gradients flow to the projection matrix. Defaults to
            `False`.

    Reference:
        arXiv 2009.14794, section 2.2 and appendix B.3 (generalized attention).
    """

    def __init__(
        self,
        projection_matrix: TensorLike | None,
        activation: Callable[[tf.Tensor], tf.Tensor],
        epsilon: float = 1e-3,
        trainable: bool = False,
    ) -> None:
        self.activation = activation
        self.epsilon = epsilon
        parameters = {}
        if projection_matrix is not None:
            parameters["projection_matrix"] = tf.convert_to_tensor(projection_matrix)
        super().__init__(parameters, trainable)

    def query_features(self, a, r):
        return self.activation(a) + self.epsilon, tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        return masked(self.activation(b) + self.epsilon, mask)
