"""Inputs of attention, its exact answer, and what estimates it, by name.

An estimator is a function of inputs, features and a seed. This package computes in
float32, the exact answer and all others in float64.
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
    """One head, all float64 arrays of shape `(L, H)`."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def draw(seed, length, head_dim, std):
    """Queries and keys N(0, std^2), so that logits have std^2; values N(0, 1).

    The paper says no more of its inputs than "appropriately normalized" (section 4.2),
    so their scale is a part of every result.
    """
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, length, head_dim))
    return Inputs(std * query, std * key, value)


def exact_weights(inputs):
    """The attention matrix, rows sum to 1."""
    scores = inputs.query @ inputs.key.T / inputs.query.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


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
    return trigonometric_attention(inputs, rows.numpy().astype("float64"))


def trigonometric_attention(inputs, rows):
    """Attention by a cosine and a sine for each of `(m, H)` rows, which the paper left.

    exp(x . y) = exp(|x|^2 / 2) E[cos(w . (x - y))] exp(|y|^2 / 2): features are not
    positive, so that a sum of weights can come close to zero, or be negative. A
    control, and no layer's.
    """
    scale = inputs.query.shape[-1] ** -0.25
    x, y = scale * inputs.query, scale * inputs.key
    # exp(|x|^2 / 2) of a query cancels; one factor for all keys does too
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
# Those that have as many features as they are asked for.
RANDOM = (
    DEFAULT,
    POSITIVE,
    POSITIVE_IID,
    TRIGONOMETRIC,
    TRIGONOMETRIC_IID,
    RELU,
)
