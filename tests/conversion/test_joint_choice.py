"""The output of a model decides how much the far weights of all its layers count."""

import keras
import numpy as np
import pytest

from keras_performer import calibrate, convert_to_performer, convert_to_softmax
from keras_performer.conversion import calibration as joint_choice
from keras_performer.conversion import fitting
from tests.conversion.test_calibration import data, error_of

pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")


def performer():
    """A model of two layers, as converted."""
    keras.utils.set_random_seed(5)
    x = start = keras.Input((40, 12))
    for name in ("one", "two"):
        x = x + keras.layers.MultiHeadAttention(2, 6, name=name)(x, x)
    given = dict(exact_window=4, num_random_features=64, seed=0)
    return convert_to_performer(keras.Model(start, x), **given)[0]


@pytest.fixture(scope="module")
def models():
    """Two models as converted, whose gains tests set, and one of exact attention."""
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
    x = data()[:3]  # all of which are asked about
    errors = {
        change: error_of(with_gains(fitted, wrong + change), exact, x)
        for change in joint_choice.CHANGES + joint_choice.FURTHER_CHANGES
    }
    with_gains(model, 20.0)
    with_gains(fitted, wrong)
    given = exact, model, fitted, layers_of(fitted)
    found = joint_choice.choose(*given, [x[:1], x[1:]])
    # random weights like far keys: the estimate of softmax is biased low
    best = min(errors, key=errors.get)
    assert best in (1.0 - wrong, 1.0) and errors[best] < 0.95 * errors[0.0]
    assert found.fitted and found.change == best
    np.testing.assert_allclose(found.after, errors[found.change], rtol=1e-4)
    np.testing.assert_allclose(found.before, error_of(model, exact, x), rtol=1e-4)
    for one, gain in ((model, 20.0), (fitted, wrong + best)):
        for layer in layers_of(one):
            np.testing.assert_allclose(layer.log_gain, [gain] * 2, rtol=1e-6)


def test_little_changes_nothing(models):
    *models, exact = models
    x = data()
    for model, gain in zip(models, (1.0, 2.0)):
        with_gains(model, gain)
    errors = [error_of(model, exact, x) for model in models]
    assert 0.95 * errors[1] < errors[0] < errors[1]
    found = joint_choice.choose(exact, *models, layers_of(models[1]), [x])
    assert found.fitted and found.change == 0.0
    np.testing.assert_allclose([found.before, found.after], errors, rtol=1e-4)


def test_layers_stay_where_fitted_ones_do_harm(monkeypatch):
    model, x = performer(), data()
    # with its near keys alone a layer does, and nothing is so much better
    monkeypatch.setattr(fitting, "LOG_GAINS", (-8.0,))
    monkeypatch.setattr(fitting, "BETTER", 9.0)
    monkeypatch.setattr(joint_choice, "CHANGES", (0.0,))
    same, report = calibrate(model, x, verbose=0)
    assert not report.fitted and report.change == 0.0 and same is not model
    for old, layer in zip(layers_of(model), layers_of(same), strict=True):
        for before, after in zip(old.get_weights(), layer.get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)
    exact, _ = convert_to_softmax(model)
    np.testing.assert_allclose(report.after, error_of(same, exact, x), rtol=1e-4)
    assert report.before == report.after
    assert [row.before for row in report.layers] == [row.after for row in report.layers]
    assert "stay as they were" in str(report)


def test_the_report_says_what_the_output_came_to():
    model, x = performer(), data()
    fitted, report = calibrate(model, x, verbose=0)
    exact, _ = convert_to_softmax(model)
    np.testing.assert_allclose(report.before, error_of(model, exact, x), rtol=1e-4)
    np.testing.assert_allclose(report.after, error_of(fitted, exact, x), rtol=1e-4)
    assert report.after < report.before
    assert f"{report.after:.3f} after" in str(report)
