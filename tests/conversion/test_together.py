"""The output of a model decides how much the far weights of all its layers count."""

import keras
import numpy as np
import pytest

from keras_performer import calibrate, convert_to_performer, convert_to_softmax
from keras_performer.conversion import together
from keras_performer.layers.far_gain import SPEED
from tests.conversion.test_calibration import data, error_of

pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")


def performer(**options):
    """A model of two layers, as converted."""
    keras.utils.set_random_seed(5)
    x = start = keras.Input((40, 12))
    for name in ("one", "two"):
        x = x + keras.layers.MultiHeadAttention(2, 6, name=name)(x, x)
    given = dict(exact_window=4, num_random_features=64, seed=0)
    return convert_to_performer(keras.Model(start, x), **{**given, **options})[0]


def layers_of(model):
    return [model.get_layer(name) for name in ("one", "two")]


def with_gains(log_gain):
    model = performer()
    for layer in layers_of(model):
        layer.log_gain.assign([log_gain / SPEED] * 2)
    return model


@pytest.mark.parametrize("too_much", [2.0, 3.0, 5.0])
def test_gains_of_all_layers_are_lowered_to_the_least_error(too_much):
    model, exact = with_gains(5.0), convert_to_softmax(performer())[0]
    fitted, x = with_gains(too_much), data()
    errors = {
        change: error_of(with_gains(too_much + change), exact, x)
        for change in together.CHANGES
    }
    found = together.choose(model, exact, fitted, set(layers_of(model)), [x[:1], x[1:]])
    # random weights like far keys: the estimate of softmax is biased low
    assert found.change == min(errors, key=errors.get) == 1.0 - too_much
    np.testing.assert_allclose(found.after, errors[found.change], rtol=1e-4)
    np.testing.assert_allclose(found.before, error_of(model, exact, x), rtol=1e-4)
    for layer in layers_of(fitted):
        np.testing.assert_allclose(layer.log_gain, [1.0 / SPEED] * 2, rtol=1e-6)


def test_a_model_that_was_better_stays(monkeypatch):
    model, x = performer(), data()
    # fitted layers are left their near keys, which are few
    monkeypatch.setattr(together, "CHANGES", (-30.0,))
    same, report = calibrate(model, x, verbose=0)
    assert same is not model
    for old, new in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    exact, _ = convert_to_softmax(model)
    np.testing.assert_allclose(report.after, error_of(model, exact, x), rtol=1e-4)
    assert report.before == report.after and report.change is None
    assert [row.before for row in report.layers] == [row.after for row in report.layers]
    assert "they stay as they were" in str(report)


def test_the_report_says_what_the_output_came_to():
    model, x = performer(), data()
    fitted, report = calibrate(model, x, verbose=0)
    exact, _ = convert_to_softmax(model)
    np.testing.assert_allclose(report.before, error_of(model, exact, x), rtol=1e-4)
    np.testing.assert_allclose(report.after, error_of(fitted, exact, x), rtol=1e-4)
    assert report.after < report.before
    assert f"{report.after:.3f} after" in str(report)
