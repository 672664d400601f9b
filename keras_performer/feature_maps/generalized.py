"""The generalized kernels of the paper: an activation of projected inputs."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.feature_maps.feature_map import FeatureMap, Parameters
from keras_performer.ops.shapes import TensorLike

# Activations that Keras lacks or defines differently; the others are in Keras.
_ACTIVATIONS = {
    "square": tf.math.square,
    "abs": tf.math.abs,
    "exp": tf.math.exp,
    "cos": tf.math.cos,
    "identity": tf.identity,
    "elu": lambda x: keras.activations.elu(x) + 1.0,
}
NAMES = tuple("relu elu square abs exp gelu sigmoid tanh cos identity".split())


@keras.saving.register_keras_serializable(package="keras_performer")
class GeneralizedFeatures(FeatureMap):
    """Features `activation(W x) + epsilon` with x = q / H^(1/4).

    These features do not estimate softmax attention: train the model from scratch. With
    "gelu", "tanh", "cos" and "identity" features can be negative, so weights can be
    negative too, and their sum can come close to zero. "elu" is elu(x) + 1, which is
    positive.

    Args:
        activation: a name from "relu", "elu", "square", "abs", "exp", "gelu",
            "sigmoid", "tanh", "cos", "identity", or a function of a tensor that is
            registered with `keras.saving.register_keras_serializable`. A lambda works
            until the model is saved.
        epsilon: float, added to every feature; 1e-3 as in the paper's code. Defaults to
            `0.001`.

    Reference:
        arXiv 2009.14794, section 2.2 (generalized attention) and appendix A.2.

    Example:

    >>> GeneralizedFeatures("relu").get_config()
    {'activation': 'relu', 'epsilon': 0.001}
    """

    projection_is_optional = True

    def __init__(
        self, activation: str | Callable[[tf.Tensor], tf.Tensor], epsilon: float = 1e-3
    ) -> None:
        if activation not in NAMES and not callable(activation):
            raise ValueError(
                f"activation must be one of {', '.join(NAMES)}, or a function. "
                f"Received: activation={activation!r}"
            )
        self.activation = activation
        self.epsilon = _checked_epsilon(epsilon)

    def draw(self, num_features: int, head_dim: int, seed: TensorLike) -> Parameters:
        return ops.orthogonal_gaussian_matrix(num_features, head_dim, seed)

    def kernel(self, parameters: Parameters | None) -> ops.Kernel:
        activation = self.activation
        if not callable(activation):
            activation = _function(activation)
        return ops.ActivationKernel(parameters, activation, self.epsilon)

    def get_config(self) -> dict[str, Any]:
        activation = self.activation
        if callable(activation):
            activation = _serialize(activation)
        return {"activation": activation, "epsilon": self.epsilon}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        activation = config["activation"]
        if activation not in NAMES:
            activation = keras.activations.get(activation)
        return cls(**{**config, "activation": activation})


def _checked_epsilon(epsilon):
    if not isinstance(epsilon, Real) or not 0 <= epsilon < math.inf:
        raise ValueError(
            "epsilon must be a finite float of at least 0. Received: "
            f"epsilon={epsilon!r}"
        )
    return float(epsilon)


def _function(name):
    return _ACTIVATIONS.get(name) or keras.activations.get(name)


def _serialize(activation):
    """Returns a name or config with which `keras.activations.get` finds a function."""
    name = getattr(activation, "__name__", None)
    if name is not None:
        means = _function(name) if name in NAMES else None
        if means is activation:
            return name
        if getattr(keras.activations, name, None) is activation:
            # "elu" alone would be elu(x) + 1
            named = keras.saving.serialize_keras_object(activation)
            return named if means else name
        registered_name = keras.saving.get_registered_name(activation)
        if keras.saving.get_registered_object(registered_name) is activation:
            return keras.saving.serialize_keras_object(activation)
    raise ValueError(
        "activation cannot be saved or cloned: it must be a name, one of Keras' "
        "activations, or a function decorated with "
        "@keras.saving.register_keras_serializable() (a lambda cannot be found by its "
        f"name). Received: activation={activation}"
    )
