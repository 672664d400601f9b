"""Measuring with real processes of a made-up framework; nothing here is timed."""

import argparse
import json
import sys

from benchmarks import measure, plan, turns, workers
from tests.benchmarks import made_up

CONTENDERS = """
import os

def start(threads):
    print("what a framework prints")
    return {"fake": str(threads)}

def program(case):
    if case["contender"] == "fails":
        raise ValueError("no such layer")
    if case["contender"] == "ends":
        return lambda: None, lambda: os._exit(3)
    return lambda: None, lambda: sum(range(100_000))
"""


def test_real_processes(tmp_path, monkeypatch):
    fakes = {
        "here": ("contenders.fake", None),
        "wrong": ("contenders.nothing", None),
        "torch": ("contenders.fake", []),
    }
    made_up.put(CONTENDERS, fakes, tmp_path, monkeypatch)
    names = ["here works", "here fails", "here ends", "wrong x", "torch y"]
    planned = [
        {
            "environment": name.split()[0],
            "contender": name.split()[1],
            "mode": "graph",
            "dtype": "float32",
            "length": 256,
            "form": "causal",
            "step": "training",
            "part": "layer",
        }
        for name in names
    ]
    monkeypatch.setattr(plan, "groups", lambda lengths, contenders: [planned])
    monkeypatch.setattr(plan, "memory_cases", lambda lengths: planned[:1])
    options = argparse.Namespace(
        lengths=[256],
        contenders=None,
        rounds=3,
        threads=1,
        limit=60,
        output=tmp_path / "out",
    )
    pool = turns.Pool(1)
    try:
        measure.measure(options, pool)
    finally:
        pool.stop()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    works, *others = results["rows"]
    assert len(works["times"]) == 3 and 0 < min(works["times"])
    assert works["first_call_seconds"] > 0 and works["reason"] is None
    reasons = [row["reason"] for row in others]
    assert reasons[0] == "ValueError: no such layer"
    assert reasons[1] == "the process ended with code 3 (memory?)"
    assert reasons[2].startswith("wrong: ModuleNotFoundError: No module named")
    assert reasons[3].startswith("torch: not installed")
    assert results["versions"] == {"here": {"fake": "1"}}
    assert set(results["missing"]) == {"wrong", "torch"}
    if sys.platform == "linux":
        assert results["memory"][0]["peak_bytes"] is not None


def test_a_failure_of_pip_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "FOLDER", tmp_path)
    peers = {"peer": ("fake", ["./no such folder"]), "keras": ("keras_layers", None)}
    missing = measure.install_missing(peers)
    assert list(missing) == ["peer"]
    assert missing["peer"].startswith("peer: ") and "no such folder" in missing["peer"]


def test_only_the_environments_of_the_contenders_are_needed():
    assert set(measure.needed([256], ["softmax", "exact"])) == {"keras"}
    assert set(measure.needed([256], None)) == {"keras", "kernel_attention", "torch"}
