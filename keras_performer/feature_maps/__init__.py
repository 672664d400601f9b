"""Kernels of attention layers as small serializable objects."""

from keras_performer.feature_maps.feature_map import FeatureMap
from keras_performer.feature_maps.generalized import GeneralizedFeatures
from keras_performer.feature_maps.registry import deserialize, get, serialize
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
