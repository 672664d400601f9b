"""Programs that take turns, in real processes of a made-up framework and in none."""

import json
import statistics

import pytest

from benchmarks import checkouts, measure, turns

FRAMEWORK = """
import os, time
try:
    import keras_performer
    SECONDS, versions = keras_performer.SECONDS, {"it": keras_performer.__version__}
except (ImportError, AttributeError):
    SECONDS, versions = 0, {"it": "1"}

def start(threads):
    print("what a framework prints")
    return versions

def program(case):
    if case["contender"] == "exact":
        raise ValueError("no such layer")
    if case["contender"] == "returns V":
        return lambda: None, lambda: os._exit(3)
    return lambda: None, lambda: time.sleep(SECONDS) or sum(range(100_000))
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A folder in the place of this repository, whose contenders are made up."""
    package = tmp_path / "benchmarks"
    (package / "contenders").mkdir(parents=True)
    (package / "contenders" / "ours.py").write_text(FRAMEWORK)
    for path in (package, package / "contenders"):
        (path / "__init__.py").touch()
    source = (turns.ROOT / "benchmarks" / "worker.py").read_text()
    (package / "worker.py").write_text(source)
    monkeypatch.setattr(turns, "ROOT", tmp_path)
    monkeypatch.setattr(turns, "FOLDER", tmp_path / ".bench")
    # the others are not there, and pip cannot get them
    for name in ("torch", "kernel_attention"):
        module, _ = turns.ENVIRONMENTS[name]
        monkeypatch.setitem(turns.ENVIRONMENTS, name, (module, ["./no such folder"]))
    return tmp_path


def test_the_measurement_of_real_processes(made_up):
    flags = ["--lengths", "256", "--rounds", "2", "--output", str(made_up / "out")]
    measure.main([*flags, "--contenders", "softmax", "exact", "returns V"])
    results = json.loads((made_up / "out" / "results.json").read_text())
    training = [row for row in results["rows"] if row["step"] == "training"]
    reasons = {row["contender"]: row["reason"] for row in training}
    for row in results["rows"]:
        if row["contender"] in ("softmax", "matmul"):
            assert len(row["times"]) == 2 and 0 < min(row["times"])
            assert row["first_call_seconds"] > 0 and row["reason"] is None
    assert reasons["returns V"] == "the process ended with code 3 (memory?)"
    assert reasons["exact"] == "ValueError: no such layer"
    assert results["versions"] == {"ours": {"it": "1"}} and not results["memory"]
    missing = turns.install_missing(["torch"])
    assert missing["torch"].startswith("torch: ") and "no such folder" in str(missing)


def test_what_is_too_large_or_too_slow_is_left_out():
    case = dict(contender="exact", form="causal", step="training", mode="graph")
    case |= {"dtype": "float32", "length": 65536}
    # three float32 arrays of 8 heads x L x L
    assert measure.too_large(case, 4e11).startswith("needs 412 GB")
    assert measure.too_large(case, 5e11) is None
    row = turns.row({**case, "length": 16384}) | {"times": [4.5, 4.0]}
    assert "would take 64 s (4.0 s at length 16384)" in measure.too_slow(
        case, [row], limit=60
    )
    assert measure.too_slow(case, [row], limit=65) is None
    groups = list(measure.groups([4096, 256]))
    assert [group[0]["length"] for group in groups] == [256] * 2 + [4096] * 4
    assert {case["environment"] for group in groups for case in group} == {
        *("ours", "kernel_attention", "torch")
    }


def test_two_checkouts_in_real_processes(made_up, capsys):
    """The one that is compared is ten times as slow."""
    folders = []
    for name, seconds in ("slow", 0.1), ("quick", 0.01):
        package = made_up / name / "keras_performer"
        package.mkdir(parents=True)
        text = f"__version__, SECONDS = {name!r}, {seconds}"
        (package / "__init__.py").write_text(text)
        # each has benchmarks of its own, which must not be used
        (made_up / name / "benchmarks").mkdir()
        (made_up / name / "benchmarks" / "__init__.py").write_text("1 / 0")
        folders.append(str(package.parent))
    checkouts.main(
        f"{folders[1]} --this {folders[0]} --lengths 7 --pairs 5 --sittings 2 "
        "--processes 1 --modes xla --steps training "
        f"--output {made_up / 'out'}".split()
    )
    results = json.loads((made_up / "out" / "checkouts.json").read_text())
    versions = {side: each["it"] for side, each in results["versions"].items()}
    assert versions == {"this": "slow", "other": "quick"}
    assert [row["form"] for row in results["rows"]] == ["bidirectional", "causal"]
    for row in results["rows"]:
        assert len(row["pairs"]) == 5 and len(row["made"]) == 2
        # neither side always goes first
        assert {next(iter(pair)) for pair in row["pairs"]} == {"this", "other"}
        assert 2 < statistics.median(checkouts.ratios(row["pairs"]))
    assert "above 1.05: softmax, 7 tokens, bidirectional, training, xla; " in (
        capsys.readouterr().out
    )
    with pytest.raises(turns.Missing, match="keras_performer"):
        turns.Worker("ours", 1, checkout=str(made_up))


def test_a_ratio_is_the_median_of_pairs():
    # the machine was three times slower in the last pair: both were
    pairs = [(0.011, 0.010), (0.012, 0.010), (0.039, 0.030)]
    made = {
        side: {"trace_seconds": t, "first_call_seconds": f, "peak_bytes": p * 2**20}
        for side, t, f, p in (("this", 0.2, 3, 20), ("other", 0.1, 2, 10))
    }
    case = dict(contender="softmax", length=1024, form="causal", step="training")
    row = {**case, "mode": "xla", "made": [made]}
    row["pairs"] = [dict(zip(checkouts.SIDES, pair)) for pair in pairs]
    line = checkouts.times([row]).splitlines()[2]
    assert "| 12.0 | 10.0 | 1.200 | 1.100-1.300 | 2.00 | 1.50 |" in line
    assert "| 20 | 10 | 2.000 |" in checkouts.memory([row])


class FakeWorker:
    """Answers at once and writes down who asked; its programs are gone when it ends."""

    versions = {"fake": "1.0"}

    def __init__(self, log, environment, fails=(), ends=(), seconds=()):
        self.log, self.environment = log, environment
        self.fails, self.ends, self.seconds = fails, ends, dict(seconds)
        self.programs = {}  # with how often each ran

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
            first = self.programs[name] == 1  # which must not count
            return 100 if first else self.seconds.get(contender, 0.5)
        self.programs.clear()

    def stop(self):
        self.log.append(("stop", self.environment))


def turns_of(contenders, rounds=2, limit=60, **behaviour):
    """Requests to workers, and the rows; "a/x" is contender x in environment a."""
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
    return log, rows


def asked(log, what):
    return [contender for do, contender in log if do == what]


def test_programs_take_turns():
    log, rows = turns_of(["a/x", "b/y", "a/z", "gone/x"], rounds=3)
    assert asked(log, "make") == ["a/x", "b/y", "a/z"]
    # a first run each that does not count, then the rounds
    assert asked(log, "run") == (1 + 3) * ["a/x", "b/y", "a/z"]
    assert log.index(("make", "a/z")) < log.index(("run", "a/x"))
    assert [row["times"] for row in rows] == [*3 * [[0.5] * 3], []]
    assert rows[3]["reason"] == "gone: No matching distribution"
    log, rows = turns_of(["a/x"], limit=1.9)
    assert rows[0]["reason"] == "its first call took 2 s, the limit is 1.9 s"
    assert asked(log, "run") == []


def test_slow_programs_run_in_fewer_rounds_spread_over_all():
    seconds = {"a/slow": 2.5, "a/quick": 0.5}
    log, rows = turns_of(list(seconds), rounds=9, seconds=seconds)
    assert [row["times"] for row in rows] == [5 * [2.5], 9 * [0.5]]
    # 1 unmeasured run, then rounds 0, 2, 4, 6 and 8
    both, one = ["a/slow", "a/quick"], ["a/quick"]
    assert asked(log, "run") == both + both + 4 * (one + both)


def test_a_process_that_ended_is_started_again_for_its_other_programs():
    log, rows = turns_of(["a/x", "a/y", "b/z", "b/w"], ends=["a/y"], fails=["b/w"])
    assert [row["reason"] for row in rows] == [
        None,
        "the process ended with code -9",
        None,
        "ResourceExhaustedError: out of memory",
    ]
    assert [row["times"] for row in rows] == [2 * [0.5], [], 2 * [0.5], []]
    assert asked(log, "start") == ["a", "b", "a"]
    assert asked(log, "make") == ["a/x", "a/y", "b/z", "b/w", "a/x"]
