"""Fitted layers say the same with exact weights, and come nearer to it without."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, convert_to_softmax, ops
from keras_performer.conversion.fitting import RIDGE, Moments
from keras_performer.layers import PerformerAttention
from keras_performer.layers.call_inputs import Inputs
from keras_performer.ops import Visibility

# Keras 3.10 says so of every functional model that it makes of a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM, HEADS, KEY_DIM = 40, 12, 4, 6


def data(seed=0, number=4):
    random = np.random.default_rng(seed)
    return random.normal(size=(number, LENGTH, DIM)).astype("float32")


def trained(causal=False, **options):
    """A model whose keys have a large common part, as those of trained models."""
    keras.utils.set_random_seed(3)
    layer = keras.layers.GroupQueryAttention(KEY_DIM, HEADS, 2, name="one", **options)
    start = keras.Input((LENGTH, DIM))
    model = keras.Model(start, layer(start, start, use_causal_mask=causal))
    random = np.random.default_rng(4)
    if layer.use_bias:
        layer._key_dense.bias.assign(2 * random.normal(size=(2, KEY_DIM)))
    layer._query_dense.kernel.assign(0.6 * random.normal(size=(DIM, HEADS, KEY_DIM)))
    layer._key_dense.kernel.assign(0.4 * random.normal(size=(DIM, 2, KEY_DIM)))
    return model


def converted(model, **options):
    given = dict(exact_window=4, num_random_features=64, seed=0)
    return convert_to_performer(model, **{**given, **options})[0]


def error_of(model, exact, x):
    """The relative error of the output of a model."""
    output, expected = (keras.ops.convert_to_numpy(m(x)) for m in (model, exact))
    return np.linalg.norm(output - expected) / np.linalg.norm(expected)


def error_of_heads(layer, x, causal):
    """The relative error of what heads attend to, by the layer itself."""
    heads = [layer.project(name, tf.constant(x)) for name in ("query", "key", "value")]
    exact = ops.exact_attention(*heads, causal=causal)
    estimate, _ = layer.attend(*heads, Visibility(causal=causal))
    squares = [np.sum(np.square(z), (0, 1, 3)) for z in (estimate - exact, exact)]
    return np.sqrt(np.mean(squares[0] / squares[1]))


@pytest.mark.parametrize("causal", [False, True])
def test_a_fitted_model_is_nearer_and_exactly_the_same(causal, tmp_path):
    model = trained(causal)
    performer = converted(model)
    before = [w.copy() for w in performer.get_weights()]
    fitted, report = calibrate(performer, data(), verbose=0)
    (row,) = report.layers
    assert row.path == "one" and row.basis in ("centred", "balanced")
    assert row.after < 0.8 * row.before
    for reported, one in ((row.before, performer), (row.after, fitted)):
        error = error_of_heads(one.get_layer("one"), data(), causal)
        np.testing.assert_allclose(reported, error, rtol=1e-3)
    # the output, of other data
    x = data(seed=9)
    assert error_of(fitted, model, x) < 0.8 * error_of(performer, model, x)
    # the softmax attention of its weights is that of the model
    np.testing.assert_allclose(
        convert_to_softmax(fitted)[0](x), model(x), rtol=1e-4, atol=1e-5
    )
    for old, new in zip(before, performer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    fitted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), fitted(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [-2.0, 8.0])
def test_gains_are_those_of_the_least_error(wrong):
    performer = converted(trained())
    performer.get_layer("one").assign_log_gain([wrong, 0.0, 0.0, 0.0])
    fitted, report = calibrate(performer, data(), verbose=0)
    assert report.layers[0].after < report.layers[0].before
    layer = fitted.get_layer("one")
    chosen = layer.log_gain.numpy()
    assert chosen[0] != np.float32(wrong)
    errors = []
    for gain in (chosen[0], *(wrong + np.arange(-8, 3))):
        layer.assign_log_gain([gain, *chosen[1:]])
        errors.append(error_of_heads(layer, data()[2:], False))
    assert errors[0] < min(errors) / 0.98 < 0.97 * max(errors)


def test_features_alone_are_fitted_without_gains():
    model = trained()
    performer = converted(model, exact_window=None)
    fitted, report = calibrate(performer, data(), verbose=0)
    assert fitted.get_layer("one").log_gain is None
    row, x = report.layers[0], data(seed=9)
    assert row.after < 0.8 * row.before
    assert error_of(fitted, model, x) < 0.8 * error_of(performer, model, x)


def test_moments_are_those_of_the_tokens_that_are_there():
    random = np.random.default_rng(0)
    query = random.normal(size=(2, 9, 4, 3)) + [1, 2, 3]
    key = 2 * random.normal(size=(2, 9, 2, 3)) - 1
    query_mask = random.random((2, 9)) < 0.7
    key_mask = random.random((2, 9)) < 0.7
    visible = Visibility(tf.constant(key_mask))
    inputs = Inputs(query, key, key, tf.constant(query_mask), visible)
    moments = Moments(2, 3)
    for part in (slice(0, 1), slice(1, 2)):
        moments.add(
            tf.constant(query[part]),
            tf.constant(key[part]),
            inputs._replace(
                query_mask=query_mask[part],
                visible=Visibility(tf.constant(key_mask[part])),
            ),
        )
    for head in range(2):
        queries = query[query_mask][:, 2 * head : 2 * head + 2].reshape(-1, 3)
        keys = key[key_mask][:, head]
        np.testing.assert_allclose(moments.centred().mean[head], keys.mean(0))
        basis = moments.balanced()
        of_queries, of_keys = basis.of_queries[head], basis.of_keys[head]
        # both cancel
        np.testing.assert_allclose(of_queries @ of_keys.T, np.eye(3), atol=1e-12)
        covariances = []
        for tokens, matrix in ((queries, of_queries), (keys, of_keys)):
            covariance = np.cov(tokens.T, bias=True)
            covariance += RIDGE * np.trace(covariance) / 3 * np.eye(3)
            covariances.append(matrix.T @ covariance @ matrix)
        np.testing.assert_allclose(covariances[0], covariances[1], atol=1e-10)
        variances = np.diag(covariances[0])
        np.testing.assert_allclose(covariances[0], np.diag(variances), atol=1e-10)
        assert (np.diff(variances) < 0).all()


def test_without_biases_the_mean_of_keys_stays():
    model = trained(use_bias=False)
    fitted, report = calibrate(converted(model), data(), verbose=0)
    assert report.layers[0].basis in ("as it is", "balanced")
    np.testing.assert_allclose(
        convert_to_softmax(fitted)[0](data()), model(data()), rtol=1e-4, atol=1e-5
    )


def test_rotary_layers_keep_their_queries_and_keys():
    layer = PerformerAttention(
        2, KEY_DIM, exact_window=4, rotary=True, num_random_features=64, seed=0
    )
    start = keras.Input((LENGTH, DIM))
    model = keras.Model(start, layer(start))
    fitted, report = calibrate(model, data(), verbose=0)
    assert report.layers[0].basis == "as it is"
    np.testing.assert_allclose(
        convert_to_softmax(fitted)[0](data()),
        convert_to_softmax(model)[0](data()),
        rtol=1e-4,
        atol=1e-5,
    )


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="see `convert_to_performer`"):
        calibrate(trained(), data())
    start = keras.Input((None, DIM))
    layer = PerformerAttention(2, KEY_DIM, num_random_features=8)
    with pytest.raises(ValueError, match="at least key_dim=6 tokens .* It has 3"):
        calibrate(keras.Model(start, layer(start)), data()[:1, :3], verbose=0)
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(converted(trained()), iter([]), verbose=0)
    with pytest.raises(ValueError, match="num_rows must be"):
        calibrate(trained(), data(), num_rows=0)


class Own(PerformerAttention):
    pass


def test_subclasses_stay_as_they_are():
    start = keras.Input((LENGTH, DIM))
    options = dict(exact_window=4, num_random_features=8)
    y = Own(2, KEY_DIM, name="own", **options)(start)
    y = PerformerAttention(2, KEY_DIM, name="plain", **options)(y)
    fitted, report = calibrate(keras.Model(start, y), data(number=1), verbose=0)
    assert isinstance(fitted.get_layer("own"), Own)
    assert [row.path for row in report.layers] == ["plain"]
    assert "a subclass of PerformerAttention" in report.left_out["own"]


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_heads_without_queries_are_fitted(bias):
    """Pruned heads are such: their queries are constant, or 0."""
    keras.utils.set_random_seed(0)
    layer = keras.layers.MultiHeadAttention(2, 4)
    start = keras.Input((20, 8))
    model = keras.Model(start, layer(start, start))
    kernel = layer.query_dense.kernel.numpy()
    kernel[:, 1] = 0
    layer.query_dense.kernel.assign(kernel)
    layer.query_dense.bias.assign(np.full((2, 4), bias))
    x = np.random.default_rng(1).normal(size=(4, 20, 8)).astype("float32")
    performer, _ = convert_to_performer(
        model, exact_window=4, num_random_features=16, seed=0
    )
    fitted, _ = calibrate(performer, x)
    exact, _ = convert_to_softmax(fitted)
    np.testing.assert_allclose(exact(x), model(x), rtol=1e-4, atol=1e-5)
