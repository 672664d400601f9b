"""What estimates attention, by name; each a function of inputs, features and a seed."""

import functools

import numpy as np
import tensorflow as tf

from benchmarks.accuracy import trigonometric
from keras_performer import feature_maps, ops

POSITIVE, POSITIVE_IID = "favor+", "positive, iid"
TRIGONOMETRIC, TRIGONOMETRIC_IID = "trigonometric", "trigonometric, iid"
DEFAULT, TAYLOR, RELU, MEAN = "softmax", "taylor", "relu", "mean of values"
FEATURE_MAPS = {
    DEFAULT: feature_maps.get("softmax"),
    POSITIVE: feature_maps.get("favor+"),
    POSITIVE_IID: feature_maps.SoftmaxFeatures(
        hyperbolic=False, regularized=False, orthogonal=False
    ),
    RELU: feature_maps.get("relu"),
}


def attention(name, inputs, num_features, seed):
    """An estimate of the output of exact attention, float64 of shape `(L, H)`."""
    return ESTIMATORS[name](inputs, num_features, seed)


def mean_of_values(inputs, num_features, seed):
    return np.broadcast_to(inputs.value.mean(0), inputs.value.shape)


def of_package(feature_map, inputs, num_features, seed):
    """The mathematics of the layer, in float32."""
    draws = num_features, inputs.query.shape[-1], (seed, 1)
    kernel = feature_map.kernel(num_features and feature_map.draw(*draws))
    heads = [tf.constant(x[None, :, None], tf.float32) for x in inputs]
    output = ops.bidirectional_attention(*heads, kernel)
    return output[0, :, 0].numpy().astype("float64")


def of_trigonometric(draw, inputs, num_features, seed):
    """Half as many rows as features: of a cosine and a sine each."""
    rows = draw(num_features // 2, inputs.query.shape[-1], (seed, 1))
    return trigonometric.attention(inputs, rows.numpy().astype("float64"))


ESTIMATORS = {
    MEAN: mean_of_values,
    **{
        name: functools.partial(of_package, feature_map)
        for name, feature_map in FEATURE_MAPS.items()
    },
    TAYLOR: functools.partial(of_package, feature_maps.get("taylor")),
    TRIGONOMETRIC: functools.partial(of_trigonometric, ops.orthogonal_gaussian_matrix),
    TRIGONOMETRIC_IID: functools.partial(of_trigonometric, ops.gaussian_matrix),
}
# Those that have as many features as they are asked for.
RANDOM = (
    DEFAULT,
    POSITIVE,
    POSITIVE_IID,
    TRIGONOMETRIC,
    TRIGONOMETRIC_IID,
    RELU,
)
