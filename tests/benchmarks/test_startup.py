"""First training steps, measured in new processes."""

import json

import pytest

from benchmarks import startup


@pytest.mark.slow
def test_first_steps_and_their_graphs(tmp_path):
    tiny = {"mode": "graph", "width": 4, "heads": 2, "length": 8}
    cases = [{**tiny, "depth": depth, "name": "exact"} for depth in (1, 2)]
    text = startup.measure(cases, repeats=1, threads=1, output=tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    one, two = results["rows"]
    assert all(len(row["times"]) == 1 and row["times"][0] > 0 for row in (one, two))
    assert two["nodes"] > one["nodes"] > 0
    assert text == (tmp_path / "tables.md").read_text()
    assert f"| PerformerLM, 2 layers | exact | graph | {two['times'][0]:.1f}" in text
