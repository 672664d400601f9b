"""Features of the Taylor polynomial of the softmax kernel."""

import keras

from keras_performer import ops
from keras_performer.feature_maps.feature_map import FeatureMap, Parameters


@keras.saving.register_keras_serializable(package="keras_performer")
class TaylorFeatures(FeatureMap):
    """Features whose products are 1 + t + t^2 / 2 of t = q . k / sqrt(H).

    exp(t) up to its second order, and without noise: for small heads, as there are
    1 + H + H (H + 1) / 2 features (153 of heads of 16, 2,145 of heads of 64).

    Reference:
        arXiv 2402.18668.

    Example:

    >>> TaylorFeatures().num_features(None, head_dim=16)
    153
    """

    projection_is_optional = True
    estimates_softmax = True

    def check(self, num_random_features: int | None) -> None:
        if num_random_features is not None:
            raise ValueError(
                'feature_map="taylor" has no random features: use '
                "num_random_features=None. Received: "
                f"num_random_features={num_random_features}"
            )

    def kernel(self, parameters: Parameters | None) -> ops.Kernel:
        return ops.TaylorKernel()

    def num_features(self, num_random_features: int | None, head_dim: int) -> int:
        return ops.TaylorKernel().num_features(head_dim)
