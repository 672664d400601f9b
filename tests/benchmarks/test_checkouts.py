"""Two checkouts compared in pairs: real processes of a made-up package."""

import json
import math
import statistics

import pytest

from benchmarks import checkouts, workers
from tests.benchmarks import made_up

CONTENDERS = """
import time
import keras_performer

def start(threads):
    return {"keras_performer": keras_performer.__version__}

def program(case):
    return lambda: None, lambda: time.sleep(keras_performer.SECONDS)
"""
CASE = {
    "contender": "softmax",
    "length": 1024,
    "form": "causal",
    "mode": "xla",
    "step": "training",
}


@pytest.fixture
def two_checkouts(tmp_path, monkeypatch):
    """Folders of which the one that is compared is ten times as slow."""
    known = {"keras": ("contenders.fake", None)}
    made_up.put(CONTENDERS, known, tmp_path, monkeypatch)
    folders = []
    for name, seconds in ("slow", 0.1), ("quick", 0.01):
        package = tmp_path / name / "keras_performer"
        package.mkdir(parents=True)
        text = f"__version__, SECONDS = {name!r}, {seconds}"
        (package / "__init__.py").write_text(text)
        # each has benchmarks of its own, which must not be used
        (tmp_path / name / "benchmarks").mkdir()
        (tmp_path / name / "benchmarks" / "__init__.py").write_text("1 / 0")
        folders.append(package.parent)
    return folders


def test_each_process_has_the_package_of_its_checkout(two_checkouts, tmp_path, capsys):
    slow, quick = two_checkouts
    output = tmp_path / "out"
    checkouts.main(
        f"{quick} --this {slow} --lengths 7 --pairs 5 --sittings 2 --processes 1 "
        f"--modes xla --steps training --output {output}".split()
    )
    results = json.loads((output / "checkouts.json").read_text())
    assert results["versions"] == {
        "this": {"keras_performer": "slow"},
        "other": {"keras_performer": "quick"},
    }
    assert [row["form"] for row in results["rows"]] == ["bidirectional", "causal"]
    for row in results["rows"]:
        assert len(row["pairs"]) == 5 and len(row["made"]) == 2
        # neither side always goes first
        assert {next(iter(pair)) for pair in row["pairs"]} == {"this", "other"}
        assert 2 < statistics.median(checkouts.ratios(row["pairs"]))
    assert "above 1.05: softmax, 7 tokens, bidirectional, training, xla; " in (
        capsys.readouterr().out
    )


def test_a_folder_that_lacks_the_package_is_no_checkout(two_checkouts, tmp_path):
    with pytest.raises(SystemExit):
        checkouts.main([str(tmp_path)])
    # one that would be taken from elsewhere is noticed by the process itself
    with pytest.raises(workers.Missing, match="keras_performer"):
        workers.Worker("keras", 1, checkout=str(tmp_path))


def entries(*pairs):
    return [{"this": this, "other": other} for this, other in pairs]


def made(*figures):
    """Seconds of tracing and of the first call and MiB, each of both sides."""
    trace, first, mebibytes = figures
    return {
        side: {
            "trace_seconds": trace[index],
            "first_call_seconds": first[index],
            "peak_bytes": mebibytes[index] * 2**20,
        }
        for index, side in enumerate(checkouts.SIDES)
    }


def test_ratios_are_those_of_pairs_and_their_mean_is_geometric():
    # the machine was three times slower in the last pair: both were
    pairs = entries((0.011, 0.010), (0.012, 0.010), (0.039, 0.030))
    row = {**CASE, "pairs": pairs, "made": [made((0.2, 0.1), (3, 2), (20, 10))]}
    other = {**row, "form": "bidirectional", "pairs": entries((0.05, 0.1), (0.05, 0.1))}
    table = checkouts.times([row, other]).splitlines()
    cells = [cell.strip() for cell in table[2].strip("|").split("|")]
    assert cells[:5] == ["softmax", "1024", "causal", "training", "xla"]
    assert cells[5:] == ["12.0", "10.0", "1.200", "1.100-1.300", "2.00", "1.50"]
    text = checkouts.summary([row, other])
    mean = f"{math.sqrt(1.2 * 0.5):.3f}"
    assert f"geometric mean of 2 ratios: {mean}" in text
    assert "largest: 1.200 (softmax, 1,024 tokens, causal, training, xla)" in text
    assert "mean of tracing: 2.000" in text and "first calls: 1.500" in text


def test_memory_is_the_median_of_processes():
    peaks = (300, 100), (330, 110), (900, 120)
    row = {**CASE, "made": [made((1, 1), (1, 1), pair) for pair in peaks]}
    text = checkouts.memory([row])
    assert "| 330 | 110 | 3.000 |" in text and "memory: 3.000" in text
