"""The scripts for a GPU, on a CPU."""

import json

import pytest

from benchmarks.gpu import layers, models

SIZE = 1, 16


def test_a_case_of_the_file_is_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "SIZES", (SIZE,))
    monkeypatch.setattr(layers, "OF_ROW", {layers.EXACT: (SIZE,)})
    monkeypatch.setattr(layers, "MODES", ("graph",))
    command = ["--output", str(tmp_path), "--rows", layers.EXACT]
    layers.main(command)
    rows = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert [row["form"] for row in rows] == ["causal", "bidirectional"]
    assert all(min(row["rounds"]) <= row["ms"] <= max(row["rounds"]) for row in rows)
    asked = []
    monkeypatch.setattr(layers, "measured", lambda case: asked.append(case) or {})
    layers.main([*command, "window"])
    assert [case["row"] for case in asked] == ["window", "window"]


@pytest.mark.slow
def test_a_model_that_has_not_learned_needs_eight_bits_for_a_byte(monkeypatch):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    small = {"BATCH": 1, "LENGTH": 32, "HELD_OUT": 2, "STEPS": 1, "SIZES": sizes}
    small |= {"PROMPT": 4, "GENERATED": 2, "PROMPTS": (2,)}
    for name, value in small.items():
        monkeypatch.setattr(models, name, value)
    found = models.trained("no attention", seconds=0)
    assert found["bits"] == pytest.approx(8, abs=0.5)
    assert found["steps"] == 1
    assert found["generated_per_second"][2] > 0
