"""The scripts for a GPU, on a CPU."""

import json

from benchmarks.gpu import layers

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
