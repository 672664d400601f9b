"""The command writes everything, the same twice, and fails when a law does."""

import json

import numpy as np
import pytest

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy import checks, estimates, estimators, peers, report, training
from benchmarks.learning import pool

RUN = {
    "task": "recall 64",
    "measure": "accuracy",
    "key_dim": 16,
    "learning_rate": 0.003,
    "steps": 300,
    "seconds": 1.25,
    "machine": "of today",
}


@pytest.fixture
def small(monkeypatch):
    """Sizes of a second."""
    monkeypatch.setattr(estimates, "QUICK_LENGTH", 24)
    monkeypatch.setattr(estimates, "QUICK_DRAWS", 2)
    monkeypatch.setattr(estimates, "QUICK_SWEEP", (16, 64))
    monkeypatch.setattr(checks, "QUICK_GROUPS", 2_000)
    monkeypatch.setattr(peers, "PEERS", {})
    settings = (16, 0.25, (16, 64)), (16, 1.0, (16, 64)), (8, 0.5, (16,))
    monkeypatch.setattr(estimates, "SETTINGS", settings)
    monkeypatch.setattr(training, "QUICK_ROWS", ("relu",))
    monkeypatch.setattr(training, "QUICK_STEPS", 3)
    monkeypatch.setattr(training, "EVALUATIONS", 3)


def run(folder, *arguments):
    failed = command.main(
        ["--quick", "--workers", "0", "--output", str(folder), *arguments]
    )
    return failed, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_everything_is_written_and_the_same_twice(small, tmp_path):
    failed, first = run(tmp_path / "first")
    again, second = run(tmp_path / "second")
    assert failed == again == 0
    assert set(first) == {"about", *command.PARTS}
    for part in command.PARTS:
        assert first[part] == second[part]
    settings = {(row["head_dim"], row["std"]) for row in first["estimates"]}
    assert len(settings) == len(estimates.SETTINGS)
    (trained,) = first["training"]
    assert [steps for steps, _ in trained["curve"]] == [1, 2, 3]
    text = (tmp_path / "first" / "tables.md").read_text()
    for picture in ("estimates.png", "training.png"):
        assert f"({picture})" in text
        assert (tmp_path / "first" / picture).stat().st_size > 10_000
    (best,) = (
        row
        for row in first["estimates"]
        if (row["estimator"], row["std"], row["features"])
        == (estimates.BEST_RANK, 0.25, 16)
    )
    assert f"| best rank m | {best['relative_error']:.4f} |" in text


def test_a_part_is_made_again_and_the_others_stay(small, tmp_path):
    _, first = run(tmp_path, "--parts", "checks")
    first["estimates"] = []
    first["checks"] = [{**first["checks"][0], "what": "of before"}]
    (tmp_path / "results.json").write_text(json.dumps(first))
    _, second = run(tmp_path, "--parts", "peers")
    assert [row["what"] for row in second["checks"]] == ["of before"]
    _, third = run(tmp_path, "--parts", "checks")
    assert "of before" not in [row["what"] for row in third["checks"]]


def test_it_fails_when_a_law_does(small, tmp_path, monkeypatch, capsys):
    right = checks.laws.positive_error
    monkeypatch.setattr(checks.laws, "positive_error", lambda *of: 2 * right(*of))
    failed, results = run(tmp_path, "--parts", "checks")
    assert failed >= 4
    assert "Does not hold: error of positive features" in capsys.readouterr().out
    assert "**NO**" in (tmp_path / "tables.md").read_text()


def test_training_keeps_no_times(monkeypatch):
    found = {**RUN, "row": "relu", "seed": 1, "result": 0.75}
    found["curve"] = [[25, 3.5, 2.0, 0.25], [50, 7.0, 1.0, 0.75]]
    asked = []
    # `pool.results` itself, which an argument too few would not reach
    monkeypatch.setattr(pool, "alone", lambda train, run: asked.append(run) or found)
    kept, *_ = training.runs(quick=True, workers=0)
    assert asked == training.plan(quick=True)
    assert kept["curve"] == [[25, 0.25], [50, 0.75]]
    assert set(kept) == {*training.KEPT, "result", "curve"}


def test_a_table_of_training_by_hand():
    runs = [
        {**RUN, "row": "relu", "seed": 1, "result": 0.25, "curve": [[25, 0.25]]},
        {
            **RUN,
            "row": "relu",
            "seed": 0,
            "result": 0.75,
            "curve": [[25, 0.1], [50, 0.75]],
        },
    ]
    text = report.tables.kernels_table(runs)
    assert "| relu | 0.500 | 0.750, 0.250 | 50, – |" in text
    steps, values = report.plots.of_seeds(runs)
    np.testing.assert_array_equal(steps, [25, 50])
    np.testing.assert_allclose(values, [[0.25, 0.25], [0.1, 0.75]])


def test_peers_stand_beside_this_package():
    setting = {"head_dim": 16, "std": 0.5, "features": 256}
    rows = [{**setting, "estimator": "performer-pytorch", "reason": "no network"}]
    ours = [
        {
            **setting,
            "estimator": estimators.DEFAULT,
            "relative_error": 0.058,
            "relative_error_std": 0.011,
        }
    ]
    text = report.tables.peers_table(rows, ours)
    assert "| `performer-pytorch` | not run: no network | – | – |" in text
    assert "| softmax | 0.0580 ± 0.011 | – | – |" in text


def test_the_whole_is_trained_with_and_without_redraw():
    planned = training.plan()
    rows = {run["row"] for run in planned}
    for name in training.REDRAWN:
        assert {name, f"{name}, redraw"} <= rows
    assert {*training.CONTROLS, *training.KERNELS} <= rows
    assert len(planned) == len(rows) * len(training.SEEDS)
