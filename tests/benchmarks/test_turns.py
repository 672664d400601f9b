"""Processes that take turns, real and fake, and processes that may end."""

import json
import os

import numpy as np
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
    if case["contender"] == "returns V":
        return lambda: None, lambda: os._exit(3)
    return lambda: None, lambda: sum(range(100_000))

def attend(case, query, key, value):
    return case["features"] * value[: len(query)]
"""


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
    measure.main([*flags, "--contenders", "softmax", "exact", "returns V"])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    reasons = {row["contender"]: row["reason"] for row in results["rows"]}
    for row in results["rows"]:
        if row["contender"] in ("softmax", "matmul"):
            assert len(row["times"]) == 2 and 0 < min(row["times"])
            assert row["first_call_seconds"] > 0 and row["reason"] is None
    assert reasons["returns V"] == "the process ended with code 3 (memory?)"
    assert reasons["exact"] == "ValueError: no such layer"
    assert results["versions"] == {"ours": {"it": "1"}} and not results["memory"]
    paths = {name: str(tmp_path / f"{name}.npz") for name in ("inputs", "output")}
    value = np.arange(6.0).reshape(3, 2)
    np.savez(paths["inputs"], query=value[:2], key=value, value=value)
    with turns.session(1) as (pool, _):
        pool.ask("ours", do="attend", case={"features": 2, **paths})
    found = np.load(f"{paths['output']}.npy")
    np.testing.assert_array_equal(found, [[0, 2], [4, 6]])
    assert found.dtype == np.float32
    # pip cannot install it
    module, _ = turns.ENVIRONMENTS["torch"]
    monkeypatch.setitem(turns.ENVIRONMENTS, "torch", (module, ["./no such folder"]))
    with turns.session(1, ["torch"]) as (pool, results):
        assert "no such folder" in results["missing"]["torch"]
        with pytest.raises(turns.Missing, match="torch: "):
            pool.ask("torch", do="drop")


class FakeWorker:
    """Worker that answers at once and logs requests; its end removes its programs."""

    versions = {"fake": "1.0"}

    def __init__(self, log, environment, fails=(), ends=(), seconds=()):
        self.log, self.environment = log, environment
        self.fails, self.ends, self.seconds = fails, ends, dict(seconds)
        self.programs = {}  # number of runs of each

    def ask(self, do, name=None, case=None):
        contender = case and case["contender"]
        self.log.append((do, contender))
        if contender in self.fails:
            raise RuntimeError("ResourceExhaustedError: out of memory")
        if do == "make":
            self.programs[name] = 0
            return {"trace_seconds": 1, "first_call_seconds": 2, "peak_bytes": 3}
        if do == "run":
            self.programs[name] += 1
            if contender in self.ends and self.programs[name] == 2:
                raise turns.Ended("the process ended with code -9")
            first = self.programs[name] == 1  # the first run must not count
            return 100 if first else self.seconds.get(contender, 0.5)
        self.programs.clear()

    def stop(self):
        self.log.append(("stop", self.environment))


def turns_of(contenders, rounds=2, limit=60, **behaviour):
    """Returns requests and rows; "a/x" is contender x in environment a."""
    log = []

    def start(environment, threads):
        log.append(("start", environment))
        return FakeWorker(log, environment, **behaviour)

    pool = turns.Pool(2, {"gone": "gone: No matching distribution"}, start)
    rows = [
        turns.row({"environment": name.split("/")[0], "contender": name})
        for name in contenders
    ]
    turns.take_turns(rows, pool, rounds, limit)
    asked = {
        what: [contender for do, contender in log if do == what]
        for what in ("start", "make", "run")
    }
    return asked, rows


def test_programs_take_turns():
    asked, rows = turns_of(["a/x", "b/y", "a/z", "gone/x"], rounds=3)
    assert asked["make"] == ["a/x", "b/y", "a/z"]
    # one run of each that does not count, then the rounds
    assert asked["run"] == (1 + 3) * ["a/x", "b/y", "a/z"]
    assert [row["times"] for row in rows] == [*3 * [[0.5] * 3], []]
    assert rows[3]["reason"] == "gone: No matching distribution"
    asked, rows = turns_of(["a/x"], limit=1.9)
    assert rows[0]["reason"] == "its first call took 2 s, the limit is 1.9 s"
    assert asked["run"] == []


def test_slow_programs_run_in_fewer_rounds_spread_over_all():
    seconds = {"a/slow": 2.5, "a/quick": 0.5}
    asked, rows = turns_of(list(seconds), rounds=9, seconds=seconds)
    assert [row["times"] for row in rows] == [5 * [2.5], 9 * [0.5]]
    # 1 unmeasured run, then rounds 0, 2, 4, 6 and 8
    both, one = ["a/slow", "a/quick"], ["a/quick"]
    assert asked["run"] == both + both + 4 * (one + both)


def test_a_process_that_ended_is_started_again_for_its_other_programs():
    asked, rows = turns_of(["a/x", "a/y", "b/z", "b/w"], ends=["a/y"], fails=["b/w"])
    assert [row["reason"] for row in rows] == [
        None,
        "the process ended with code -9",
        None,
        "ResourceExhaustedError: out of memory",
    ]
    assert [row["times"] for row in rows] == [2 * [0.5], [], 2 * [0.5], []]
    assert asked["start"] == ["a", "b", "a"]
    assert asked["make"] == ["a/x", "a/y", "b/z", "b/w", "a/x"]


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
    assert lines[0] == "| number | ? |" and lines[3] == "| case | error |"
