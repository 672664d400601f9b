"""A first training step, measured in a new process."""

import json

import pytest

from benchmarks import startup


@pytest.mark.slow
def test_a_first_step_and_its_graph(tmp_path):
    tiny = {"mode": "graph", "width": 4, "heads": 2, "length": 8}
    cases = [{**tiny, "depth": 1, "name": "exact"}]
    text = startup.measure(cases, repeats=1, threads=1, output=tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    (row,) = results["rows"]
    (seconds,) = row["times"]
    assert seconds > 0 and row["nodes"] > 100
    assert text == (tmp_path / "tables.md").read_text()
    assert f"| PerformerLM, 1 layers | exact | graph | {seconds:.1f}" in text
