"""The laws hold, are written down right, and do not hold of what is broken."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate

from benchmarks.accuracy import checks, draws, laws
from keras_performer import feature_maps, ops

GROUPS = 30_000
X, Y = checks.pair(*checks.PAIRS["apart"])


def failed(rows):
    return [row["what"] for row in rows if not row["passed"]]


def seed(estimator_index):
    return (11, estimator_index)


def test_all_hold():
    rows = list(checks.checks(quick=True))
    assert failed(rows) == []
    assert {row["law"] for row in rows} == {
        "Lemma 1",
        "Lemma 2",
        "Theorem 1",
        "Theorem 2",
    }
    # a bound is far from what it bounds at times, an equation never
    equations = [row["z"] for row in rows if row["z"] and row["z"] > -4.5]
    assert len(equations) > 30 and np.std(equations) > 0.5


class WithoutSigns(feature_maps.SoftmaxFeatures):
    """Orthogonal rows as QR leaves them, which are not Haar distributed."""

    def draw(self, num_features, head_dim, seed):
        rows = ops.gaussian_matrix(num_features, head_dim, seed)
        blocks = tf.reshape(rows, (-1, head_dim, head_dim))
        directions = tf.reshape(tf.linalg.qr(blocks)[0], rows.shape)
        return directions * tf.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "name, feature_map, expected",
    [
        ("ORTHOGONAL", WithoutSigns(False, False), "mean of orthogonal"),
        ("ORTHOGONAL", draws.IID, "error of orthogonal"),
        ("ORTHOGONAL", draws.IID, "bound on the error"),
        ("ORTHOGONAL", draws.REGULARIZED, "error of orthogonal"),
        ("IID", draws.ORTHOGONAL, "error of positive"),
        ("IID", draws.REGULARIZED, "mean of positive"),
        ("HYPERBOLIC", draws.IID, "error of hyperbolic"),
        ("REGULARIZED", draws.IID, "SMREG / SM, x"),
    ],
)
def test_features_of_another_law_fail(monkeypatch, name, feature_map, expected):
    monkeypatch.setattr(draws, name, feature_map)
    rows = [
        row
        for law in (checks.lemma_2, checks.theorem_1, checks.theorem_2)
        for row in law("apart", X, Y, GROUPS, seed)
    ]
    assert any(what.startswith(expected) for what in failed(rows)), failed(rows)


def test_a_biased_control_fails(monkeypatch):
    right = draws.of_trigonometric
    monkeypatch.setattr(
        draws, "of_trigonometric", lambda *arguments: 1.02 * right(*arguments)
    )
    wrong = failed(checks.lemma_2("apart", X, Y, GROUPS, seed))
    assert wrong[0].startswith("mean of trigonometric")


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
    """Of one feature in one dimension, where the mean is over one normal number."""
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


def test_theorem_2_leaves_one_feature_as_it_is():
    assert laws.orthogonal_gain(X, Y, 1) == 0
    one = functools.partial(laws.orthogonal_error, X, Y)
    assert one(1) == pytest.approx(laws.positive_error(X, Y, 1))
    assert one(8) < laws.positive_error(X, Y, 8) - laws.orthogonal_gain(X, Y, 8)
