"""Processes that take turns, real and fake, and processes that may end."""

import json
import os

import pytest

from benchmarks import measure, turns
from benchmarks.tpu import rows

FRAMEWORK = """
import os

def start(threads):
    print("what a framework prints")
    return {"it": "1"}

def program(case):
    if case["contender"] == "exact":
        raise ValueError("no such layer")
    if case["contender"].endswith("=False"):
        return lambda: os._exit(3)
    return lambda: sum(range(100_000))
"""

ENDING = "softmax, jit_compile=False"


def test_the_measurement_of_real_processes(tmp_path, monkeypatch):
    package = tmp_path / "benchmarks"
    (package / "contenders").mkdir(parents=True)
    (package / "contenders" / "ours.py").write_text(FRAMEWORK)
    for path in (package, package / "contenders"):
        (path / "__init__.py").touch()
    source = (turns.ROOT / "benchmarks" / "worker.py").read_text()
    (package / "worker.py").write_text(source)
    monkeypatch.setattr(turns, "ROOT", tmp_path)
    monkeypatch.setattr(turns, "FOLDER", tmp_path / ".bench")
    flags = ["--lengths", "256", "--rounds", "2", "--output", str(tmp_path / "out")]
    measure.main([*flags, "--contenders", "softmax", "exact", ENDING])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    reasons = {row["contender"]: row["reason"] for row in results["rows"]}
    for row in results["rows"]:
        if row["contender"] == "softmax":
            assert len(row["times"]) == 2 and 0 < min(row["times"])
            assert row["first_call_seconds"] > 0 and row["reason"] is None
    assert reasons[ENDING] == "the process ended with code 3 (memory?)"
    assert reasons["exact"] == "ValueError: no such layer"
    assert results["versions"] == {"ours": {"it": "1"}} and not results["memory"]
    # pip cannot install it
    module, _ = turns.ENVIRONMENTS["torch"]
    monkeypatch.setitem(turns.ENVIRONMENTS, "torch", (module, ["./no such folder"]))
    with turns.session(1, ["torch"]) as (pool, results):
        assert "no such folder" in results["missing"]["torch"]
        with pytest.raises(turns.Missing, match="torch: "):
            pool.ask("torch", do="drop")


def double(number):
    if number == 2:
        raise ValueError("two\nis refused")
    if number == 3:
        os._exit(1)  # like a process that the system kills for its memory
    return {"double": 2 * number}


def test_a_case_that_fails_does_not_end_a_table(tmp_path, capsys):
    path, cases = tmp_path / "new" / "table.json", [(n,) for n in (1, 2, 3, 4)]
    rows.print_table(["number", "?"], lambda row: map(str, row), double, cases, path)
    first, second, third, last = json.loads(path.read_text())
    assert (first, last) == ({"double": 2}, {"double": 8})
    assert second == {"case": [2], "error": "ValueError: two"}
    assert third["error"].startswith("BrokenProcessPool")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| number | ? |" and lines[3] == "| 2 | ValueError: two |"
