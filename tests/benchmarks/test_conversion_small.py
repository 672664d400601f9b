"""What stands beside a converted model that was trained here is what it is called."""

import itertools

import numpy as np
import pytest
import scipy.special

from benchmarks.conversion.small import converted, report, speed
from benchmarks.conversion.small.__main__ import make_parser
from benchmarks.conversion.small.cases import SEED, cases
from benchmarks.conversion.small.results import Result, asked
from benchmarks.learning import models, rows
from keras_performer import convert_to_performer
from keras_performer.layers import ExactAttention

CASE = cases()["recall"]


@pytest.mark.slow
def test_controls_are_what_they_are_called():
    exact = models.make_model(CASE.task, rows.EXACT, CASE.key_dim, SEED)
    tokens = CASE.task.draw(np.random.default_rng(0), 1)[0]
    first = itertools.islice(converted.controls(CASE, exact, num_steps=1), 3)
    found = {name: model for name, model, *_ in first}
    same, mean, window = (np.asarray(model(tokens)) for model in found.values())
    np.testing.assert_array_equal(same, exact(tokens))
    both, _ = convert_to_performer(
        exact,
        exact_window=CASE.task.window,
        feature_map="taylor",
        num_random_features=None,
    )
    assert np.abs(both(tokens) - window).max() > 1e-3
    np.testing.assert_allclose(
        converted.without_far_keys(both)(tokens), window, rtol=1e-4, atol=1e-4
    )
    x = np.random.default_rng(1).normal(size=(1, 7, 64)).astype("float32")
    attention = found[converted.MEAN].blocks[0].attention
    assert isinstance(attention, ExactAttention)
    _, weights = attention(x, return_attention_scores=True)
    equal = np.tri(7) / np.arange(1, 8)[:, np.newaxis]
    np.testing.assert_allclose(weights[0], np.broadcast_to(equal, (4, 7, 7)), atol=1e-6)


def test_answers_are_those_of_the_logits():
    model = models.make_model(CASE.task, rows.WITHOUT, CASE.key_dim, SEED)
    result = asked(CASE, "none", model, steps=3, seconds=2.0)
    assert (result.name, result.steps, result.seconds) == ("none", 3, 2.0)
    bits, right, asked_for = [], 0, 0
    for inputs, targets, weights in CASE.task.held_out():
        logits = np.asarray(model(inputs)).astype("float64")
        logs = scipy.special.log_softmax(logits, -1)
        of_targets = np.take_along_axis(logs, targets[..., np.newaxis], -1)[..., 0]
        bits += list(-(of_targets * weights).sum(1) / weights.sum(1) / np.log(2))
        right += ((logits.argmax(-1) == targets) * weights).sum()
        asked_for += weights.sum()
    assert result.accuracy == pytest.approx(right / asked_for)
    np.testing.assert_allclose(result.bits, bits, rtol=1e-5)


def test_the_report_has_every_number(tmp_path):
    name = "window + taylor, transferred"
    found = [
        Result(rows.EXACT, 0.99951, [0.01, 0.02]),
        Result(name, 0.5, [1.01, 3.02], 61.0, steps=200),
        Result(name, 0.9, [0.51, 0.52], 30.0, 200, further_steps=40),
    ]
    options = make_parser().parse_args(["--steps", "3", "--further-steps", "1", "2"])
    lines = report.page(CASE, found, options).splitlines()
    command = "python -m benchmarks.conversion.small --cases recall --steps 3 "
    assert f"    {command}--further-steps 1 2" in lines
    assert "| exact | 0 | 0 | 0.9995 | 0.015 |  |  | 0 |" in lines
    assert f"| {name} | 200 | 0 | 0.5000 | 2.015 | +2.000 | 1.000 | 61 |" in lines
    assert f"| {name} | 200 | 40 | 0.9000 | 0.515 | +0.500 | 0.000 | 30 |" in lines
    report.draw(found, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").stat().st_size > 0


def test_exact_attention_beyond_the_memory_is_not_tried():
    # 4 heads, and 8 bytes of each of 2^40 pairs
    assert speed.cell(rows.EXACT, 2**20) == "needs 32768 GB"


def test_every_row_is_measured_at_every_length(monkeypatch, capsys):
    monkeypatch.setattr(speed, "cell", lambda row, length: f"{row} at {length}")
    speed.main(["--lengths", "8", "16"])
    printed = capsys.readouterr().out
    assert "| attention | 8 tokens | 16 tokens |" in printed
    for row in speed.ROWS:
        assert f"| {row} | {row} at 8 | {row} at 16 |" in printed
