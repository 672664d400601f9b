"""Feature maps by name, object and config, and their features."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps, ops
from keras_performer.feature_maps import GeneralizedFeatures
from tests.layers import twins

LINEAR = np.linspace(-2, 2, 9)
EXPECTED = {
    "relu": np.maximum(LINEAR, 0),
    "elu": np.where(LINEAR > 0, LINEAR + 1, np.exp(LINEAR)),
    "square": LINEAR**2,
    "abs": np.abs(LINEAR),
    "exp": np.exp(LINEAR),
    "gelu": LINEAR * np.vectorize(lambda x: (1 + math.erf(x / 2**0.5)) / 2)(LINEAR),
    "sigmoid": 1 / (1 + np.exp(-LINEAR)),
    "tanh": np.tanh(LINEAR),
    "cos": np.cos(LINEAR),
    "identity": LINEAR,
}


@keras.saving.register_keras_serializable(package="tests")
def softplus_squared(x):
    return tf.square(tf.nn.softplus(x))


@pytest.mark.parametrize("name", ["softmax", "favor+", "relu", "cos"])
def test_name_object_and_config_are_the_same(name):
    by_name = feature_maps.get(name)
    assert feature_maps.get(by_name) is by_name
    config = json.loads(json.dumps(feature_maps.serialize(by_name)))
    by_config = feature_maps.get(config)
    assert type(by_config) is type(by_name)
    assert by_config.get_config() == by_name.get_config()
    again = type(by_name).from_config(by_name.get_config())
    assert feature_maps.serialize(again) == feature_maps.serialize(by_name)
    layers = [PerformerAttention(2, 4, feature_map=f) for f in (name, by_name, config)]
    configs = [layer.get_config()["feature_map"] for layer in layers]
    assert configs[0] == configs[1] == configs[2]


def test_the_kernel_knows_if_features_are_hyperbolic():
    for name, is_hyperbolic in (("softmax", True), ("favor+", False)):
        feature_map = feature_maps.get(name)
        assert feature_map.kernel(tf.ones((4, 3))).hyperbolic == is_hyperbolic


@pytest.mark.parametrize("name", EXPECTED)
def test_generalized_features_are_the_activation_plus_epsilon(name):
    """The sums of a state with one feature and one key are the feature."""
    assert set(EXPECTED) == {*feature_maps.generalized.NAMES}
    key = tf.constant(LINEAR, tf.float64, (9, 1, 1, 1))
    for epsilon in (1e-3, 0.25):
        kernel = GeneralizedFeatures(name, epsilon).kernel(tf.constant([[1.0]]))
        _, state = ops.causal_attention(key, key, tf.ones_like(key), kernel)
        np.testing.assert_allclose(
            state.sums[:, 0, 0, 0], EXPECTED[name] + epsilon, 1e-6
        )


def small_model(feature_map):
    layer = PerformerAttention(2, 4, num_random_features=8, feature_map=feature_map)
    return keras.Sequential([keras.Input((None, 6)), layer])


def test_a_registered_function_is_saved_and_found_again():
    model = small_model(GeneralizedFeatures(softplus_squared, epsilon=0.1))
    model.save("model.keras")
    restored = keras.saving.load_model("model.keras")
    assert restored.layers[0].feature_map.activation is softplus_squared
    x = tf.constant(np.random.default_rng(0).standard_normal((2, 5, 6)), "float32")
    np.testing.assert_array_equal(restored(x), model(x))


class Narrow(feature_maps.FeatureMap):
    """Map without a config."""

    def __init__(self, width):
        self.width = width

    def draw(self, num_features, head_dim, seed):
        shape = (num_features, head_dim)
        return self.width * tf.random.stateless_normal(shape, seed)

    def kernel(self, parameters):
        return ops.ActivationKernel(parameters, tf.nn.relu)


def test_a_map_with_arguments_and_no_config_is_not_saved_without_them():
    model = small_model(Narrow(0.5))
    assert np.isfinite(model(tf.ones((2, 5, 6)))).all()
    with pytest.raises(NotImplementedError, match="Narrow has the arguments width: d"):
        model.layers[0].get_config()


@pytest.mark.parametrize("name", ["gelu", "elu"])
def test_keras_own_activations_are_saved(name):
    """Tests also "elu", although the name "elu" here means elu(x) + 1."""
    activation = getattr(keras.activations, name)
    config = feature_maps.serialize(GeneralizedFeatures(activation))
    restored = feature_maps.deserialize(json.loads(json.dumps(config)))
    x = tf.linspace([-3.0], [3.0], 9)
    features = restored.kernel(None).query_features(x[tf.newaxis], None)[0][0]
    np.testing.assert_allclose(features, activation(x) + 1e-3, rtol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Fixed(feature_maps.FeatureMap):
    """Map relu(x) + 1e-3, without sampling and without a number of features."""

    def kernel(self, parameters):
        return ops.ActivationKernel(parameters, tf.nn.relu)


@pytest.mark.parametrize("feature_map", ["taylor", Fixed()])
def test_a_map_without_random_features_needs_no_number(feature_map):
    layer = PerformerAttention(2, 4, feature_map=feature_map)
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    found = layer(x, return_attention_scores=True)
    expected = twins.attention(layer)(twins.weights_of(layer), x, scores=True)
    np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-6)
    assert layer.projection_matrix is None and layer.num_random_features is None
    for number in ("auto", None):
        options = {"feature_map": feature_map, "num_random_features": number}
        config = PerformerAttention(2, 4, **options).get_config()
        assert config["num_random_features"] is None
        assert PerformerAttention.from_config(config).get_config() == config
    message = "has no random features: leave num_random_features out.*Received.*=8"
    with pytest.raises(ValueError, match=message):
        PerformerAttention(2, 4, feature_map=feature_map, num_random_features=8)
