"""Kernels of attention layers as small serializable objects."""

from typing import Any

import keras

from keras_performer.feature_maps.feature_map import FeatureMap
from keras_performer.feature_maps.generalized import NAMES, GeneralizedFeatures
from keras_performer.feature_maps.softmax import SoftmaxFeatures
from keras_performer.feature_maps.taylor import TaylorFeatures

__all__ = [
    "FeatureMap",
    "GeneralizedFeatures",
    "SoftmaxFeatures",
    "TaylorFeatures",
    "deserialize",
    "get",
    "serialize",
]


def get(identifier: str | FeatureMap | dict[str, Any]) -> FeatureMap:
    """Returns the feature map for a name, object or config.

    Args:
        identifier: "softmax" (the default of the layers), "favor+" (the paper's
            default), "taylor" (a polynomial, not random), the name of a generalized
            kernel ("relu", "elu", "square", "abs", "exp", "gelu", "sigmoid", "tanh",
            "cos", "identity"), a `FeatureMap`, or the config of one.

    Raises:
        ValueError: if it is none of these.

    Example:

    >>> get("favor+").get_config()
    {'hyperbolic': False, 'regularized': False, 'orthogonal': True}
    """
    if isinstance(identifier, FeatureMap):
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if identifier == "softmax":
        return SoftmaxFeatures()
    if identifier == "favor+":
        return SoftmaxFeatures(hyperbolic=False, regularized=False)
    if identifier == "taylor":
        return TaylorFeatures()
    if isinstance(identifier, str) and identifier in NAMES:
        return GeneralizedFeatures(identifier)
    raise ValueError(
        f"feature_map must be one of softmax, favor+, taylor, {', '.join(NAMES)}, a "
        f"FeatureMap or its config. Received: feature_map={identifier!r}"
    )


def serialize(feature_map: FeatureMap) -> dict[str, Any]:
    """Returns the config dict of a feature map."""
    return keras.saving.serialize_keras_object(feature_map)


def deserialize(config: dict[str, Any]) -> FeatureMap:
    """Returns the feature map of a config dict made by `serialize`."""
    feature_map = keras.saving.deserialize_keras_object(config)
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(
            f"feature_map must be the config of a FeatureMap. Received: {config}"
        )
    return feature_map
