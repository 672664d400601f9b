"""Features of the Taylor polynomial of the softmax kernel."""

from typing import Any

import keras

from keras_performer import ops
from keras_performer.feature_maps.feature_map import FeatureMap, Parameters


@keras.saving.register_keras_serializable(package="keras_performer")
class TaylorFeatures(FeatureMap):
    """Features whose products are 1 + t + t^2 / 2 of t = q . k / sqrt(H).

    exp(t) up to its second order, and without noise: for small heads, as there are
    1 + H + H (H + 1) / 2 features (153 of heads of 16, 2,145 of heads of 64).

    Args:
        rank: int R; only the first R elements of queries and keys count, in 1 + R +
            R (R + 1) / 2 features. `calibrate` makes them those that matter. Defaults
            to all, as does one that is larger than the head.

    Reference:
        arXiv 2402.18668.

    Example:

    >>> TaylorFeatures().num_features(None, head_dim=16)
    153
    >>> TaylorFeatures(rank=16).num_features(None, head_dim=64)
    153
    """

    estimates_softmax = True
    # without noise: what tells keys apart is t^2 / 2 of a large t
    initial_logit_scale = 16.0

    def __init__(self, rank: int | None = None) -> None:
        if rank is not None and (type(rank) is not int or rank < 1):
            raise ValueError(
                f"rank must be a positive int or None. Received: rank={rank!r}"
            )
        self.rank = rank

    def kernel(self, parameters: Parameters | None) -> ops.Kernel:
        return ops.TaylorKernel(self.rank)

    def num_features(self, num_random_features: int | None, head_dim: int) -> int:
        return ops.TaylorKernel(self.rank).num_features(head_dim)

    def get_config(self) -> dict[str, Any]:
        return {"rank": self.rank}
