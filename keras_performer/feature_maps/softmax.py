"""Positive random features of the softmax kernel."""

from typing import Any

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.feature_maps.feature_map import FeatureMap, Parameters
from keras_performer.ops.shapes import TensorLike


@keras.saving.register_keras_serializable(package="keras_performer")
class SoftmaxFeatures(FeatureMap):
    """Positive random features that estimate exp(q . k / sqrt(H)).

    The name "softmax" means this class with its defaults: the most accurate setting at
    this cost for head sizes of 16 and above. The name "favor+" means the paper's
    setting, `SoftmaxFeatures(hyperbolic=False, regularized=False)`, which is unbiased
    but has a larger variance. `make bench-accuracy` compares them.

    Args:
        hyperbolic: bool, sample half of the rows w and use both w and -w. Odd moments
            are then exact, and the projection costs half as much. Defaults to `True`.
        regularized: bool, give every row the length sqrt(H) (SMREG in the paper)
            instead of a chi(H) distributed length: a small bias, a much smaller
            variance. Defaults to `True`.
        orthogonal: bool, make rows orthogonal to each other in blocks of H rows.
            Defaults to `True`.

    Reference:
        arXiv 2009.14794: Lemma 1 (positive and hyperbolic features), section 2.3
        (SMREG), section 2.4 (orthogonal rows).

    Example:

    >>> features = SoftmaxFeatures()
    >>> features.draw(8, 4, seed=(0, 1)).shape
    TensorShape([8, 4])
    """

    estimates_softmax = True

    def __init__(
        self, hyperbolic: bool = True, regularized: bool = True, orthogonal: bool = True
    ) -> None:
        self.hyperbolic = hyperbolic
        self.regularized = regularized
        self.orthogonal = orthogonal

    def check(self, num_random_features: int | None) -> None:
        super().check(num_random_features)
        if self.hyperbolic and num_random_features and num_random_features % 2:
            raise ValueError(
                "Hyperbolic features come in pairs (w, -w): num_random_features must "
                "be even; make it even or use SoftmaxFeatures(hyperbolic=False). "
                f"Received: num_random_features={num_random_features}"
            )

    def draw(self, num_features: int, head_dim: int, seed: TensorLike) -> Parameters:
        draw = (
            ops.orthogonal_gaussian_matrix if self.orthogonal else ops.gaussian_matrix
        )
        if not self.hyperbolic:
            return draw(num_features, head_dim, seed, self.regularized)
        half = draw(num_features // 2, head_dim, seed, self.regularized)
        return tf.concat([half, -half], 0)

    def kernel(self, parameters: Parameters | None) -> ops.Kernel:
        return ops.ExponentialKernel(parameters, self.hyperbolic)

    def get_config(self) -> dict[str, Any]:
        return {
            "hyperbolic": self.hyperbolic,
            "regularized": self.regularized,
            "orthogonal": self.orthogonal,
        }
