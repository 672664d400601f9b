"""Estimates match their names, laws hold, and checks find broken estimators."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate

from benchmarks.accuracy import checks, estimates, estimators, laws
from keras_performer import feature_maps, ops
from keras_performer.ops import reference

# No two sizes are equal, and m is even, as trigonometric features are pairs.
LENGTH, DIM, M = 37, 6, 10


def heads(data):
    return [x[None, :, None] for x in data]


@pytest.mark.parametrize("name", ["softmax", "favor+", "positive, iid", "relu"])
def test_estimates_of_the_package_are_those_of_its_slow_twin(name):
    data = estimators.draw(1, LENGTH, DIM, 0.7)
    feature_map = estimators.FEATURE_MAPS[name]
    kernel = feature_map.kernel(feature_map.draw(M, DIM, (5, 1)))
    expected = reference.attention(*heads(data), kernel)[0, :, 0]
    found = estimators.attention(name, data, M, seed=5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, draw",
    [
        ("trigonometric", ops.orthogonal_gaussian_matrix),
        ("trigonometric, iid", ops.gaussian_matrix),
    ],
)
def test_trigonometric_attention_pair_by_pair(name, draw):
    data = estimators.draw(2, LENGTH, DIM, 0.4)
    rows = draw(M // 2, DIM, (5, 1)).numpy().astype("float64")
    weights = np.zeros((LENGTH, LENGTH))
    for t, s in np.ndindex(weights.shape):
        x, y = (z / DIM**0.25 for z in (data.query[t], data.key[s]))
        cosines = np.cos(rows @ (x - y)).mean()
        weights[t, s] = np.exp((x @ x + y @ y) / 2) * cosines
    expected = weights @ data.value / weights.sum(-1, keepdims=True)
    found = estimators.attention(name, data, M, seed=5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_errors_by_hand():
    # differences of 3 and 4 from the exact values 6 and 8
    found = estimates.errors(np.array([[9.0, 12.0]]), np.array([[6.0, 8.0]]))
    assert found == (0.5, 12.5)


def test_the_best_matrix_of_a_rank_is_that_of_the_singular_values():
    weights = estimators.exact_weights(estimators.draw(0, LENGTH, DIM, 1.0))
    left, values, right = np.linalg.svd(weights)
    for m, error in zip(
        (1, 7, LENGTH - 1, LENGTH), estimates.best_rank_errors(weights, (1, 7, 36, 37))
    ):
        missing = weights - (left[:, :m] * values[:m]) @ right[:m]
        expected = np.linalg.norm(missing) / np.linalg.norm(weights)
        assert error == pytest.approx(expected, abs=1e-7)


def test_rows_of_a_setting():
    rows = list(estimates.setting_rows(LENGTH, 3, DIM, 0.5, (4, M)))
    found = [(row["estimator"], row["features"]) for row in rows]
    names = (*estimators.RANDOM, estimates.BEST_RANK)
    expected = [(name, m) for name in names for m in (4, M)]
    assert {*found} == {*expected, ("mean of values", None), ("taylor", None)}
    (mean,) = (row for row in rows if row["estimator"] == "mean of values")
    errors = []
    for seed in range(3):
        data = estimators.draw(seed, LENGTH, DIM, 0.5)
        exact = reference.exact_softmax_attention(*heads(data))[0, :, 0].numpy()
        missing = exact - data.value.mean(0)
        errors.append(np.linalg.norm(missing) / np.linalg.norm(exact))
    assert mean["relative_error"] == pytest.approx(np.mean(errors))
    assert mean["relative_error_std"] == pytest.approx(np.std(errors, ddof=1))
    assert mean["relative_error_range"] == pytest.approx([min(errors), max(errors)])


GROUPS = 30_000
X, Y = checks.pair(*checks.PAIRS["apart"])


def failed(rows):
    return [row["what"] for row in rows if not row["passed"]]


def test_all_hold():
    rows = list(checks.checks(quick=True))
    assert failed(rows) == []
    assert {row["law"] for row in rows} == {
        "Lemma 1",
        "Lemma 2",
        "Theorem 1",
        "Theorem 2",
    }
    # bounds may have z-scores far below 0, equations may not
    equations = [row["z"] for row in rows if row["z"] and row["z"] > -4.5]
    assert len(equations) > 30 and np.std(equations) > 0.5


class WithoutSigns(feature_maps.SoftmaxFeatures):
    """Features with the orthogonal rows of QR, which are not Haar distributed."""

    def draw(self, num_features, head_dim, seed):
        rows = ops.gaussian_matrix(num_features, head_dim, seed)
        blocks = tf.reshape(rows, (-1, head_dim, head_dim))
        directions = tf.reshape(tf.linalg.qr(blocks)[0], rows.shape)
        return directions * tf.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "name, feature_map, expected",
    [
        ("ORTHOGONAL", WithoutSigns(False, False), "mean of orthogonal"),
        ("ORTHOGONAL", checks.IID, "error of orthogonal"),
        ("ORTHOGONAL", checks.IID, "bound on the error"),
        ("ORTHOGONAL", checks.REGULARIZED, "error of orthogonal"),
        ("IID", checks.ORTHOGONAL, "error of positive"),
        ("IID", checks.REGULARIZED, "mean of positive"),
        ("HYPERBOLIC", checks.IID, "error of hyperbolic"),
        ("REGULARIZED", checks.IID, "SMREG / SM, x"),
    ],
)
def test_features_of_another_law_fail(monkeypatch, name, feature_map, expected):
    monkeypatch.setattr(checks, name, feature_map)
    rows = [
        row
        for law in (checks.lemma_2, checks.theorem_1, checks.theorem_2)
        for row in law("apart", X, Y, GROUPS, 11)
    ]
    assert any(what.startswith(expected) for what in failed(rows)), failed(rows)


@pytest.mark.parametrize("dim", [3, 8, 16])
@pytest.mark.parametrize("squared_norm", [0.5, 3.0])
def test_the_regularized_kernel_by_an_integral_over_the_sphere(dim, squared_norm):
    scale = (dim * squared_norm) ** 0.5

    def density(cosine):
        return (1 - cosine**2) ** ((dim - 3) / 2)

    def weighted(cosine):
        return density(cosine) * np.exp(scale * cosine)

    mean = integrate.quad(weighted, -1, 1)[0] / integrate.quad(density, -1, 1)[0]
    expected = mean / np.exp(squared_norm / 2)
    assert laws.regularized_ratio(squared_norm, dim) == pytest.approx(expected)


def test_lemma_2_by_an_integral():
    """Integrates over the normal density, for one feature in one dimension."""
    x, y = np.array([0.4]), np.array([0.9])

    def error(estimate):
        def weighted(w):
            normal = np.exp(-(w**2) / 2) / (2 * np.pi) ** 0.5
            return (estimate(w) - np.exp(0.36)) ** 2 * normal

        return integrate.quad(weighted, -20, 20)[0]

    norms = np.exp(-(0.16 + 0.81) / 2)
    positive = error(lambda w: norms * np.exp(1.3 * w))
    hyperbolic = error(lambda w: norms * np.cosh(1.3 * w))
    trigonometric = error(lambda w: np.cos(0.5 * w) / norms)
    assert laws.positive_error(x, y, 1) == pytest.approx(positive)
    assert laws.hyperbolic_error(x, y, 1) == pytest.approx(hyperbolic)
    assert laws.trigonometric_error(x, y, 1) == pytest.approx(trigonometric)
