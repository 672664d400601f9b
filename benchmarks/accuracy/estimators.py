"""Inputs of attention, the exact output, and estimators of the output by name.

An estimator is a function of inputs, number of features and seed. `of_package` computes
in float32; exact attention and all other estimators compute in float64.
"""

import functools
import typing

import numpy as np
import tensorflow as tf

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


class Inputs(typing.NamedTuple):
    """Query, key and value of one head: float64 arrays of shape `(L, H)`."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def draw(seed, length, head_dim, std):
    """Samples queries and keys N(0, std^2), and values N(0, 1).

    Logits then have the standard deviation std^2. The paper calls its inputs only
    "appropriately normalized" (section 4.2), so every result names the scale.
    """
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, length, head_dim))
    return Inputs(std * query, std * key, value)


def exact_weights(inputs):
    """Returns the attention matrix, whose rows sum to 1."""
    scores = inputs.query @ inputs.key.T / inputs.query.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(name, inputs, num_features, seed):
    """Estimates the output of exact attention: float64 of shape `(L, H)`."""
    return ESTIMATORS[name](inputs, num_features, seed)


def mean_of_values(inputs, num_features, seed):
    return np.broadcast_to(inputs.value.mean(0), inputs.value.shape)


def of_package(feature_map, inputs, num_features, seed):
    """Estimates by the op that the layer calls, in float32."""
    draws = num_features, inputs.query.shape[-1], (seed, 1)
    kernel = feature_map.kernel(num_features and feature_map.draw(*draws))
    heads = [tf.constant(x[None, :, None], tf.float32) for x in inputs]
    output = ops.bidirectional_attention(*heads, kernel)
    return output[0, :, 0].numpy().astype("float64")


def of_trigonometric(draw, inputs, num_features, seed):
    """Estimates by `num_features // 2` rows, each with a cosine and a sine."""
    rows = draw(num_features // 2, inputs.query.shape[-1], (seed, 1))
    return trigonometric_attention(inputs, rows.numpy().astype("float64"))


def trigonometric_attention(inputs, rows):
    """Computes attention with a cosine and a sine for each of `(m, H)` rows.

    exp(x . y) = exp(|x|^2 / 2) E[cos(w . (x - y))] exp(|y|^2 / 2). These features are
    not positive, so a sum of weights can be close to zero, or negative. They are a
    control; no layer has them.
    """
    scale = inputs.query.shape[-1] ** -0.25
    x, y = scale * inputs.query, scale * inputs.key
    # exp(|x|^2 / 2) of a query cancels, and so does a common factor of all keys
    half_norms = (y**2).sum(-1, keepdims=True) / 2
    weighted = sines_and_cosines(y, rows) * np.exp(half_norms - half_norms.max())
    ones = np.ones_like(inputs.value[:, :1])
    sums = weighted.T @ np.concatenate([inputs.value, ones], -1)
    answers = sines_and_cosines(x, rows) @ sums
    return answers[:, :-1] / answers[:, -1:]


def sines_and_cosines(x, rows):
    projected = x @ rows.T
    return np.concatenate([np.cos(projected), np.sin(projected)], -1)


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
# Estimators whose number of features is an option.
RANDOM = (
    DEFAULT,
    POSITIVE,
    POSITIVE_IID,
    TRIGONOMETRIC,
    TRIGONOMETRIC_IID,
    RELU,
)
