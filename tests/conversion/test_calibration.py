"""Fitted layers keep their exact attention, and estimate it with smaller errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, convert_to_softmax, ops
from keras_performer.conversion import calibration as joint_choice
from keras_performer.conversion import fitting
from keras_performer.conversion.errors import relative_error as error_of_sums
from keras_performer.conversion.fitting import RIDGE, Moments
from keras_performer.layers import PerformerAttention
from keras_performer.layers.call_inputs import Inputs
from keras_performer.ops import Visibility
from tests.contract import relative_error

# Keras 3.10 warns about every functional model that it makes from a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM, HEADS, KEY_DIM = 40, 12, 4, 6


def data(seed=0, number=4):
    random = np.random.default_rng(seed)
    return random.normal(size=(number, LENGTH, DIM)).astype("float32")


def trained(causal=False, **options):
    """Returns a model whose keys have a large common part, as in trained models."""
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


def error_of_heads(layer, x, causal):
    """Returns the relative error of attended values, computed by the layer."""
    heads = [layer.project(name, tf.constant(x)) for name in ("query", "key", "value")]
    exact = ops.exact_attention(*heads, causal=causal)
    estimate, _ = layer.attend(*heads, Visibility(causal=causal))
    squares = [np.sum(np.square(z), (0, 1, 3)) for z in (estimate - exact, exact)]
    return np.sqrt(np.mean(squares[0] / squares[1]))


@pytest.mark.parametrize("causal, window", [(False, 4), (True, 4), (False, None)])
def test_a_fitted_model_is_nearer_and_exactly_the_same(causal, window):
    model = trained(causal)
    performer = converted(model, exact_window=window)
    before = [w.copy() for w in performer.get_weights()]
    fitted, report = calibrate(performer, data(), verbose=0)
    assert (fitted.get_layer("one").log_gain is None) == (window is None)
    (row,) = report.layers
    assert row.path == "one" and row.basis in ("centred", "balanced")
    assert row.after < 0.8 * row.before
    for one, of_layer, of_model in (
        (performer, row.before, report.before),
        (fitted, row.after if report.change == 0 else None, report.after),
    ):
        if of_layer is not None:
            error = error_of_heads(one.get_layer("one"), data(), causal)
            np.testing.assert_allclose(of_layer, error, rtol=1e-3)
        error = relative_error(one(data()), model(data()))
        np.testing.assert_allclose(of_model, error, rtol=1e-3)
    assert f"{report.after:.3f} after" in str(report)
    # the output for other data
    x = data(seed=9)
    errors = [relative_error(m(x), model(x)) for m in (fitted, performer)]
    assert errors[0] < 0.8 * errors[1]
    # exact attention with its weights equals the model
    assert_same_softmax(fitted, model)
    for old, new in zip(before, performer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    fitted.save("model.keras")
    loaded = keras.models.load_model("model.keras")
    np.testing.assert_allclose(loaded(x), fitted(x), rtol=1e-5, atol=1e-6)


def assert_same_softmax(fitted, model):
    exact, _ = convert_to_softmax(fitted)
    np.testing.assert_allclose(exact(data()), model(data()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "last",
    [
        lambda x: keras.layers.Dense(2, kernel_initializer="zeros")(x),
        lambda x: keras.ops.argmax(x, axis=-1),
    ],
)
def test_outputs_without_floats_other_than_0_keep_the_fits(last):
    model = trained()
    wanted, expected = calibrate(converted(model), data(), verbose=0)
    model = keras.Model(model.input, last(model.output))
    fitted, report = calibrate(converted(model), data(), verbose=0)
    assert report.layers == expected.layers
    assert report.layers[0].after < report.layers[0].before
    assert report.fitted and report.change == 0.0
    assert np.isnan([report.before, report.after]).all()
    assert "no floats other than 0" in str(report)
    for name in ("query_dense", "key_dense"):
        weights = (getattr(m.get_layer("one"), name).weights for m in (fitted, wanted))
        for found, other in zip(*weights, strict=True):
            np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize(
    "squares, of_exact, error",
    [(4.0, 16.0, 0.5), (0.0, 0.0, np.nan), (np.nan, 1.0, np.inf)]
    + [(np.inf, 1.0, np.inf), (np.inf, np.inf, np.inf)],
)
def test_relative_errors_of_sums_that_are_0_or_overflow(squares, of_exact, error):
    found = error_of_sums(np.float64(squares), np.float64(of_exact))
    np.testing.assert_equal(found, error)


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
        # the two matrices cancel in logits
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


def with_pruned_heads(bias):
    """Returns a model in which all queries of two heads equal `bias`."""
    model = trained()
    layer = model.get_layer("one")
    kernel = layer._query_dense.kernel.numpy()
    kernel[:, :2] = 0  # two heads that share a key head
    layer._query_dense.kernel.assign(kernel)
    layer._query_dense.bias.assign(np.full((HEADS, KEY_DIM), bias))
    return converted(model)


def rotary():
    options = dict(exact_window=4, rotary=True, num_random_features=64, seed=0)
    start = keras.Input((LENGTH, DIM))
    layer = PerformerAttention(2, KEY_DIM, name="one", **options)
    return keras.Model(start, layer(start))


@pytest.mark.parametrize(
    "make, bases",
    [
        # without biases, the mean of keys stays
        (lambda: converted(trained(use_bias=False)), {"as it is", "balanced"}),
        (rotary, {"as it is"}),
        (lambda: with_pruned_heads(0.0), {"as it is", "centred", "balanced"}),
        (lambda: with_pruned_heads(1.0), {"as it is", "centred", "balanced"}),
    ],
)
def test_queries_and_keys_change_as_far_as_softmax_allows(make, bases):
    model = make()
    fitted, report = calibrate(model, data(), verbose=0)
    assert report.layers[0].basis in bases
    assert_same_softmax(fitted, convert_to_softmax(model)[0])


def test_what_cannot_be_fitted_is_refused():
    start = keras.Input((None, DIM))
    layer = PerformerAttention(2, KEY_DIM, num_random_features=8)
    with pytest.raises(ValueError, match="at least key_dim=6 tokens .* Received: 3"):
        calibrate(keras.Model(start, layer(start)), data()[:1, :3], verbose=0)
    with pytest.raises(ValueError, match="num_rows must be"):
        calibrate(trained(), data(), num_rows=0)
    gated = PerformerAttention(2, KEY_DIM, num_random_features=8, forget_gate=True)
    with pytest.raises(ValueError, match="without such a layer. It has a forget gate"):
        calibrate(keras.Model(start, gated(start)), data(number=1), verbose=0)


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


# -- One change of all gains of far keys is chosen by the error of the model's output.


def performer():
    """Returns a converted model of two layers."""
    keras.utils.set_random_seed(5)
    x = start = keras.Input((LENGTH, DIM))
    for name in ("one", "two"):
        x = x + keras.layers.MultiHeadAttention(2, KEY_DIM, name=name)(x, x)
    return converted(keras.Model(start, x))


@pytest.fixture(scope="module")
def models():
    """Returns two converted models, whose gains tests set, and an exact one."""
    return performer(), performer(), convert_to_softmax(performer())[0]


def layers_of(model):
    return [model.get_layer(name) for name in ("one", "two")]


def with_gains(model, log_gain):
    for layer in layers_of(model):
        layer.assign_log_gain(log_gain)
    return model


@pytest.mark.parametrize("wrong", [-1.0, 5.0])
def test_gains_of_all_layers_are_those_of_the_least_error(wrong, models):
    model, fitted, exact = models
    x = data()[:3]  # the choice uses all three
    errors = {
        change: relative_error(with_gains(fitted, wrong + change)(x), exact(x))
        for change in joint_choice.CHANGES + joint_choice.FURTHER_CHANGES
    }
    with_gains(model, 20.0)
    with_gains(fitted, wrong)
    given = exact, model, fitted, layers_of(fitted)
    found = joint_choice.choose(*given, [x[:1], x[1:]])
    # models with random weights need large gains, as estimates of softmax are too low
    best = min(errors, key=errors.get)
    assert best in (1.0 - wrong, 1.0) and errors[best] < 0.95 * errors[0.0]
    assert found.fitted and found.change == best
    np.testing.assert_allclose(found.after, errors[found.change], rtol=1e-4)
    before = relative_error(model(x), exact(x))
    np.testing.assert_allclose(found.before, before, rtol=1e-4)
    for one, gain in ((model, 20.0), (fitted, wrong + best)):
        for layer in layers_of(one):
            np.testing.assert_allclose(layer.log_gain, [gain] * 2, rtol=1e-6)


def test_little_changes_nothing(models):
    *models, exact = models
    x = data()
    for model, gain in zip(models, (1.0, 2.0)):
        with_gains(model, gain)
    errors = [relative_error(model(x), exact(x)) for model in models]
    assert 0.95 * errors[1] < errors[0] < errors[1]
    found = joint_choice.choose(exact, *models, layers_of(models[1]), [x])
    assert found.fitted and found.change == 0.0
    np.testing.assert_allclose([found.before, found.after], errors, rtol=1e-4)
    found = joint_choice.choose(exact, exact, exact, [], [x])
    assert found[2:] == (0.0, 0.0, True, 0.0)


def test_layers_stay_where_fitted_ones_do_harm(monkeypatch):
    model, x = performer(), data()
    # -8 nearly removes far keys, which does harm, and no change is 9 times better
    monkeypatch.setattr(fitting, "LOG_GAINS", (-8.0,))
    monkeypatch.setattr(fitting, "BETTER", 9.0)
    monkeypatch.setattr(joint_choice, "CHANGES", (0.0,))
    same, report = calibrate(model, x, verbose=0)
    assert not report.fitted and report.change == 0.0 and same is not model
    for before, after in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    exact, _ = convert_to_softmax(model)
    after = relative_error(same(x), exact(x))
    np.testing.assert_allclose(report.after, after, rtol=1e-4)
    assert report.before == report.after
    assert [row.before for row in report.layers] == [row.after for row in report.layers]
    assert "stay as they were" in str(report)
