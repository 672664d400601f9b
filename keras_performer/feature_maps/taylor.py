"""Features of the Taylor polynomial of the softmax kernel."""

from typing import Any

import keras

from keras_performer import ops
from keras_performer.feature_maps.feature_map import FeatureMap, Parameters


@keras.saving.register_keras_serializable(package="keras_performer")
class TaylorFeatures(FeatureMap):
    """Features whose products are 1 + t + t^2 / 2 of t = q . k / sqrt(H).

    This is the Taylor polynomial of exp(t) of order 2, without random noise. Use it for
    small heads: the number of features is 1 + H + H (H + 1) / 2, which is 153 for head
    size 16 and 2,145 for head size 64.

    Args:
        rank: int R, use only the first R elements of queries and keys: 1 + R + R (R +
            1) / 2 features. `calibrate` moves the elements that matter to the front. A
            rank above the head size uses all elements. Defaults to `None`, all
            elements.

    Reference:
        arXiv 2402.18668.

    Example:

    >>> TaylorFeatures().num_features(None, head_dim=16)
    153
    >>> TaylorFeatures(rank=16).num_features(None, head_dim=64)
    153
    """

    estimates_softmax = True
    # There is no noise, and a large t separates keys by t^2 / 2.
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
