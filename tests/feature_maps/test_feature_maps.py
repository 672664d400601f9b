"""Feature maps by name, object and config, and what each computes."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps, ops
from keras_performer.feature_maps import GeneralizedFeatures, SoftmaxFeatures

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
NAMES = ["softmax", "favor+", *EXPECTED]


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


def test_taylor_features_are_the_polynomial():
    random = np.random.default_rng(1)
    query, key = random.standard_normal((2, 1, 6, 1, 4))
    kernel = feature_maps.get("taylor").kernel(None)
    value = tf.eye(6, dtype=tf.float64)[tf.newaxis, :, tf.newaxis]
    weights = ops.bidirectional_attention(query, key, value, kernel)[0, :, 0]
    t = query[0, :, 0] @ key[0, :, 0].T / 2
    expected = 1 + t + t**2 / 2
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    assert kernel.num_features(4) == 1 + 4 + 10
    layer = PerformerAttention(2, 4, feature_map="taylor", causal=True)
    layer.build((None, None, 8))
    assert layer.get_initial_state(1)["attention"]["sums"].shape == (1, 2, 5, 15)
    with pytest.raises(ValueError, match="rank must be a positive int or None"):
        feature_maps.TaylorFeatures(rank=0)
    with pytest.raises(ValueError, match="Taylor.* no random features.*features=256"):
        PerformerAttention(2, 4, feature_map="taylor", num_random_features=256)


def test_names_mean_what_the_documentation_says():
    assert feature_maps.get("softmax").get_config() == SoftmaxFeatures().get_config()
    assert SoftmaxFeatures().get_config() == dict(
        hyperbolic=True, regularized=True, orthogonal=True
    )
    assert feature_maps.get("favor+").get_config() == dict(
        hyperbolic=False, regularized=False, orthogonal=True
    )
    assert set(NAMES) == {"softmax", "favor+", *feature_maps.generalized.NAMES}


@pytest.mark.parametrize("name", EXPECTED)
def test_generalized_features_are_the_activation_plus_epsilon(name):
    """One feature, one key: the sums of the state are the feature itself."""
    for epsilon in (1e-3, 0.25):
        kernel = GeneralizedFeatures(name, epsilon).kernel(tf.constant([[1.0]]))
        for x, expected in zip(LINEAR, EXPECTED[name]):
            key = tf.constant(x, tf.float64, (1, 1, 1, 1))
            _, (_, sums) = ops.causal_attention(
                key, key, tf.ones_like(key), kernel, state=None
            )
            np.testing.assert_allclose(sums[0, 0, :, 0], expected + epsilon, 1e-6)


def test_features_without_projection_are_of_the_head_itself():
    kernel = GeneralizedFeatures("square").kernel(None)
    key = tf.constant([1.0, 2.0, -3.0, 0.0], tf.float64, (1, 1, 1, 4))
    _, (_, sums) = ops.causal_attention(key, key, tf.ones_like(key), kernel)
    expected = np.array([1, 4, 9, 0]) / 4**0.5 + 1e-3  # H^(-1/4) twice
    np.testing.assert_allclose(sums[0, 0, -1], expected, 1e-6)


@pytest.mark.parametrize(
    "hyperbolic, regularized, orthogonal",
    [(False, False, True), (False, True, False), (True, False, False), (True,) * 3],
)
def test_softmax_features_draw_what_they_are_asked_to(
    hyperbolic, regularized, orthogonal
):
    features = SoftmaxFeatures(hyperbolic, regularized, orthogonal)
    matrix = features.draw(16, 4, seed=(1, 2)).numpy()
    assert (matrix.shape, matrix.dtype) == ((16, 4), np.float32)
    np.testing.assert_array_equal(matrix, features.draw(16, 4, seed=(1, 2)))
    assert np.abs(matrix - features.draw(16, 4, seed=(1, 3))).max() > 0.1
    assert np.array_equal(matrix[8:], -matrix[:8]) == hyperbolic
    norms = np.linalg.norm(matrix, axis=1)
    assert np.allclose(norms, 2, atol=1e-5) == regularized
    gram = matrix[:4] @ matrix[:4].T
    off_diagonal = np.abs(gram - np.diag(np.diag(gram))).max()
    assert (off_diagonal < 1e-5) == orthogonal
    assert features.kernel(matrix).hyperbolic == hyperbolic


def test_generalized_features_draw_orthogonal_rows_of_random_length():
    matrix = feature_maps.get("relu").draw(8, 4, seed=(1, 2)).numpy()
    gram = matrix[:4] @ matrix[:4].T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-5)
    assert np.linalg.norm(matrix, axis=1).std() > 0.1


def test_odd_hyperbolic_and_missing_projections_raise():
    with pytest.raises(ValueError, match="must be even.*num_random_features=7"):
        SoftmaxFeatures().check(7)
    SoftmaxFeatures(hyperbolic=False).check(7)
    with pytest.raises(ValueError, match="num_random_features=None"):
        feature_maps.get("favor+").check(None)
    feature_maps.get("relu").check(None)


@pytest.mark.parametrize("identifier", ["Softmax", None, ["relu"]])
def test_an_unknown_feature_map_raises(identifier):
    with pytest.raises(ValueError, match="feature_map must be one of softmax, favor"):
        feature_maps.get(identifier)


def test_a_config_of_something_else_raises():
    config = keras.saving.serialize_keras_object(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="must be the config of a FeatureMap"):
        feature_maps.get(config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "activation must be one of relu"),
        (("relu", -1.0), "epsilon must be a finite float of at least 0"),
        (("relu", float("nan")), "epsilon must be a finite float of at least 0"),
    ],
)
def test_wrong_generalized_features_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        GeneralizedFeatures(*arguments)


def test_a_registered_function_is_saved_and_found_again():
    features = GeneralizedFeatures(softplus_squared, epsilon=0.1)
    model = keras.Sequential(
        [
            keras.Input((None, 6)),
            PerformerAttention(2, 4, num_random_features=8, feature_map=features),
        ]
    )
    model.save("model.keras")
    restored = keras.saving.load_model("model.keras")
    assert restored.layers[0].feature_map.activation is softplus_squared
    assert restored.layers[0].feature_map.epsilon == 0.1
    x = tf.constant(np.random.default_rng(0).standard_normal((2, 5, 6)), "float32")
    np.testing.assert_array_equal(restored(x), model(x))


def test_an_unregistered_function_works_until_it_is_saved():
    activation = tf.nn.softplus
    layer = PerformerAttention(
        2, 4, num_random_features=8, feature_map=GeneralizedFeatures(activation)
    )
    model = keras.Sequential([keras.Input((None, 6)), layer])
    assert np.isfinite(model(tf.ones((2, 5, 6)))).all()
    for save in (lambda: model.save("model.keras"), layer.get_config):
        with pytest.raises(ValueError, match="register_keras_serializable"):
            save()


class Narrow(feature_maps.FeatureMap):
    """A map whose arguments no config has."""

    def __init__(self, width):
        self.width = width

    def draw(self, num_features, head_dim, seed):
        shape = (num_features, head_dim)
        return self.width * tf.random.stateless_normal(shape, seed)

    def kernel(self, parameters):
        return ops.ActivationKernel(parameters, tf.nn.relu)


def test_a_map_with_arguments_and_no_config_is_not_saved_without_them():
    layer = PerformerAttention(2, 4, num_random_features=8, feature_map=Narrow(0.5))
    assert np.isfinite(layer(tf.ones((2, 5, 6)))).all()
    with pytest.raises(NotImplementedError, match="Narrow has the arguments width: d"):
        layer.get_config()


@pytest.mark.parametrize("name", ["gelu", "elu"])
def test_keras_own_activations_are_saved(name):
    """Also "elu", which as a name is elu(x) + 1 here."""
    activation = getattr(keras.activations, name)
    config = feature_maps.serialize(GeneralizedFeatures(activation))
    restored = feature_maps.deserialize(json.loads(json.dumps(config)))
    x = tf.linspace([-3.0], [3.0], 9)
    features = restored.kernel(None).query_features(x[tf.newaxis], None)[0][0][0]
    np.testing.assert_allclose(features, activation(x) + 1e-3, rtol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Fixed(feature_maps.FeatureMap):
    """relu(x) + 1e-3: it draws nothing, and says nothing about a number."""

    def kernel(self, parameters):
        return ops.ActivationKernel(parameters, tf.nn.relu)


def fixed_weights(layer, x):
    """The weights of keys by `Fixed`, in float64."""
    q, k = (
        np.asarray(dense(x), "float64") / layer.key_dim**0.25
        for dense in (layer.query_dense, layer.key_dense)
    )
    q, k = np.maximum(q, 0) + 1e-3, np.maximum(k, 0) + 1e-3
    weights = np.einsum("btnh,bsnh->bnts", q, k)
    return weights / weights.sum(-1, keepdims=True)


def taylor_weights(layer, x):
    q, k = (np.asarray(d(x), "float64") for d in (layer.query_dense, layer.key_dense))
    t = np.einsum("btnh,bsnh->bnts", q, k) / layer.key_dim**0.5
    weights = 1 + t + t**2 / 2
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "feature_map, weights", [("taylor", taylor_weights), (Fixed(), fixed_weights)]
)
def test_a_map_without_random_features_needs_no_number(feature_map, weights):
    layer = PerformerAttention(2, 4, feature_map=feature_map)
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    _, scores = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(scores, weights(layer, x), rtol=1e-4, atol=1e-6)
    assert layer.projection_matrix is None and layer.num_random_features is None
    config = layer.get_config()
    assert config["num_random_features"] == "auto"
    assert PerformerAttention.from_config(config).get_config() == config
    explicit = PerformerAttention(
        2, 4, feature_map=feature_map, num_random_features=None
    )
    assert explicit.get_config()["num_random_features"] is None
    message = "has no random features: leave num_random_features out.*Received.*=8"
    with pytest.raises(ValueError, match=message):
        PerformerAttention(2, 4, feature_map=feature_map, num_random_features=8)


@pytest.mark.parametrize("feature_map", ["softmax", "relu"])
def test_other_maps_have_256_features_by_default(feature_map):
    auto, given = (
        PerformerAttention(2, 4, feature_map=feature_map, seed=3, **options)
        for options in ({}, {"num_random_features": 256})
    )
    matrices = []
    for layer, number in ((auto, "auto"), (given, 256)):
        layer.build((None, None, 7))
        config = layer.get_config()
        assert config["num_random_features"] == number
        again = PerformerAttention.from_config(config)
        assert again.get_config() == config
        again.build((None, None, 7))
        matrices += [layer.projection_matrix.numpy(), again.projection_matrix.numpy()]
    assert matrices[0].shape == (256, 4)
    for matrix in matrices[1:]:
        np.testing.assert_array_equal(matrix, matrices[0])


def test_another_word_for_the_number_is_refused():
    with pytest.raises(ValueError, match="a positive int, \"auto\" or None.*='many'"):
        PerformerAttention(2, 4, num_random_features="many")
