"""The estimates are what they are called, and no linear attention beats the floor."""

import numpy as np
import pytest

from benchmarks.accuracy import (
    best_rank,
    draws,
    estimates,
    estimators,
    inputs,
    peers,
    trigonometric,
)
from keras_performer import ops
from keras_performer.ops import reference
from tests.benchmarks import made_up

# No two sizes are equal, and m is even, as trigonometric features are pairs.
LENGTH, DIM, M = 37, 6, 10


def heads(data):
    return [x[None, :, None] for x in data]


def test_exact_weights_are_those_of_softmax_attention():
    data = inputs.draw(3, LENGTH, DIM, 1.5)
    expected = reference.exact_softmax_attention(*heads(data))[0, :, 0]
    np.testing.assert_allclose(inputs.exact_weights(data) @ data.value, expected)


@pytest.mark.parametrize("std", [0.5, 2.0])
def test_inputs_have_the_scale_that_is_stated(std):
    data = inputs.draw(0, 4000, DIM, std)
    scales = [float(x.std()) for x in data]
    np.testing.assert_allclose(scales, [std, std, 1.0], rtol=0.02)
    logits = data.query @ data.key.T / DIM**0.5
    assert abs(logits.std() / std**2 - 1) < 0.03


@pytest.mark.parametrize("name", ["softmax", "favor+", "positive, iid", "relu"])
def test_estimates_of_the_package_are_those_of_its_slow_twin(name):
    data = inputs.draw(1, LENGTH, DIM, 0.7)
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
    data = inputs.draw(2, LENGTH, DIM, 0.4)
    rows = draw(M // 2, DIM, (5, 1)).numpy().astype("float64")
    weights = np.zeros((LENGTH, LENGTH))
    for t, s in np.ndindex(weights.shape):
        x, y = (z / DIM**0.25 for z in (data.query[t], data.key[s]))
        weights[t, s] = trigonometric.softmax_kernel(x, y, rows)
    expected = weights @ data.value / weights.sum(-1, keepdims=True)
    found = estimators.attention(name, data, M, seed=5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_trigonometric_features_are_unbiased():
    x, y = np.random.default_rng(0).standard_normal((2, DIM)) / 3
    found = draws.of_trigonometric(x, y, 4, 40_000, (0, 1))
    z = (found.mean() - np.exp(x @ y)) / (found.std() / len(found) ** 0.5)
    assert abs(z) < 4.5
    assert abs(found.mean() / np.exp(x @ y) - 1) < 0.01


def test_errors_by_hand():
    # differences 3 and 4 where the exact values are 6 and 8
    found = estimates.errors(np.array([[9.0, 12.0]]), np.array([[6.0, 8.0]]))
    assert found == (0.5, 12.5)


def test_the_best_matrix_of_a_rank_is_that_of_the_singular_values():
    weights = inputs.exact_weights(inputs.draw(0, LENGTH, DIM, 1.0))
    left, values, right = np.linalg.svd(weights)
    for m, error in zip(
        (1, 7, LENGTH - 1, LENGTH), best_rank.errors(weights, (1, 7, 36, 37))
    ):
        missing = weights - (left[:, :m] * values[:m]) @ right[:m]
        expected = np.linalg.norm(missing) / np.linalg.norm(weights)
        assert error == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("name", estimators.RANDOM)
@pytest.mark.parametrize("std", [0.3, 1.0])
def test_no_estimate_beats_the_best_matrix_of_its_rank(name, std):
    # values that are the identity show the matrix
    data = inputs.draw(0, LENGTH, DIM, std)._replace(value=np.eye(LENGTH))
    weights = inputs.exact_weights(data)
    (floor,) = best_rank.errors(weights, [M])
    found = estimators.attention(name, data, M, seed=0)
    assert np.linalg.matrix_rank(found, tol=1e-5) <= M
    error, _ = estimates.errors(found, weights)
    assert error >= floor > 0


def test_every_estimator_has_its_row():
    rows = list(estimates.setting_rows(LENGTH, 3, DIM, 0.5, (4, M)))
    found = {(row["estimator"], row["features"]) for row in rows}
    names = (*estimators.RANDOM, estimates.BEST_RANK)
    expected = {(name, m) for name in names for m in (4, M)}
    assert found == expected | {("mean of values", None), ("taylor", None)}
    assert len(rows) == len(found)
    (mean,) = (row for row in rows if row["estimator"] == "mean of values")
    errors = []
    for seed in range(3):
        data = inputs.draw(seed, LENGTH, DIM, 0.5)
        exact = reference.exact_softmax_attention(*heads(data))[0, :, 0].numpy()
        missing = exact - data.value.mean(0)
        errors.append(np.linalg.norm(missing) / np.linalg.norm(exact))
    assert mean["relative_error"] == pytest.approx(np.mean(errors))
    assert mean["relative_error_std"] == pytest.approx(np.std(errors, ddof=1))
    assert mean["relative_error_range"] == pytest.approx([min(errors), max(errors)])


CONTENDERS = """
import numpy as np

def start(threads):
    return {"fake": "1.0"}

def attend(case):
    if case["contender"] == "fails":
        raise ValueError("no such layer")
    with np.load(case["inputs"]) as arrays:
        value = arrays["value"]
    np.save(case["output"], np.broadcast_to(value.mean(0), value.shape))
"""


def test_peers_answer_from_their_own_process(tmp_path, monkeypatch):
    fakes = {
        "here": ("contenders.fake", None),
        "absent": ("contenders.fake", ["nothing"]),
    }
    made_up.put(CONTENDERS, fakes, tmp_path, monkeypatch)
    named = {"works": "here", "fails": "here", "missing": "absent"}
    monkeypatch.setattr(peers, "PEERS", named)
    monkeypatch.setattr(peers, "ENVIRONMENTS", fakes)
    monkeypatch.setattr(peers, "SETTINGS", ((DIM, 0.5, M),))
    monkeypatch.setattr(estimates, "QUICK_LENGTH", LENGTH)
    works, fails, missing = peers.rows(quick=True, install=False)
    rows = estimates.setting_rows(LENGTH, estimates.QUICK_DRAWS, DIM, 0.5, (M,))
    (mean,) = (row for row in rows if row["estimator"] == "mean of values")
    assert works["relative_error"] == pytest.approx(mean["relative_error"])
    assert works["versions"] == {"fake": "1.0"}
    assert fails["reason"] == "ValueError: no such layer"
    assert "not installed" in missing["reason"]
    assert "relative_error" not in fails
