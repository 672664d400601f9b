"""Programs that take turns, with workers that only write down who asked."""

import json

import pytest

from benchmarks import turns, workers


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
            assert name in self.programs
            self.programs[name] += 1
            if contender in self.ends and self.programs[name] == 2:
                raise workers.Ended("the process ended with code -9")
            first = self.programs[name] == 1  # which must not count
            return 100 if first else self.seconds.get(contender, 0.5)
        self.programs.clear()

    def stop(self):
        self.log.append(("stop", self.environment))


def turns_of(contenders, rounds=2, limit=60, **behaviour):
    """What workers were asked, and the rows; "a/x" is contender x in environment a."""
    log = []

    def start(environment, threads, _):
        log.append(("start", environment))
        return FakeWorker(log, environment, **behaviour)

    missing = {"gone": "gone: No matching distribution"}
    pool = turns.Pool(2, missing=missing, start=start)
    rows = [
        turns.row({"environment": name.split("/")[0], "contender": name})
        for name in contenders
    ]
    turns.take_turns(rows, pool, rounds, limit)
    return log, rows


def asked(log, what):
    return [contender for do, contender in log if do == what]


def test_programs_take_turns():
    log, rows = turns_of(["a/x", "b/y", "a/z"], rounds=3)
    assert asked(log, "make") == ["a/x", "b/y", "a/z"]
    # a first run each that does not count, then the rounds
    assert asked(log, "run") == (1 + 3) * ["a/x", "b/y", "a/z"]
    assert log.index(("make", "a/z")) < log.index(("run", "a/x"))
    assert asked(log, "drop") == [None, None]
    assert [row["times"] for row in rows] == 3 * [[0.5] * 3]
    assert {row["peak_bytes"] for row in rows} == {3}


def test_slow_programs_run_in_fewer_rounds_spread_over_all():
    seconds = {"a/slow": 2.5, "a/quick": 0.5}
    log, rows = turns_of(list(seconds), rounds=9, seconds=seconds)
    assert [row["times"] for row in rows] == [5 * [2.5], 9 * [0.5]]
    # 1 unmeasured run, then rounds 0, 2, 4, 6 and 8
    both, one = ["a/slow", "a/quick"], ["a/quick"]
    assert asked(log, "run") == both + both + 4 * (one + both)


def test_what_is_measured_once_does_not_run_again():
    log, rows = turns_of(["a/x"], rounds=0)
    assert asked(log, "run") == rows[0]["times"] == []
    assert rows[0]["peak_bytes"] == 3


def test_a_missing_environment_is_a_row_with_its_reason():
    log, rows = turns_of(["gone/x", "a/y"])
    assert rows[0]["reason"] == "gone: No matching distribution"
    assert rows[0]["times"] == []
    assert rows[1]["times"] == [0.5, 0.5]
    assert ("start", "gone") not in log


def test_an_environment_that_does_not_start_is_asked_once():
    starts = []

    def start(environment, threads, _):
        starts.append(environment)
        raise workers.Missing("a: ImportError: no framework")

    pool = turns.Pool(2, start=start)
    rows = [turns.row({"environment": "a", "contender": name}) for name in "xy"]
    turns.take_turns(rows, pool, rounds=1, limit=60)
    assert [row["reason"] for row in rows] == ["a: ImportError: no framework"] * 2
    assert starts == ["a"]
    assert pool.missing == {"a": "a: ImportError: no framework"}


def test_a_failing_contender_is_a_row_with_its_reason():
    log, rows = turns_of(["a/x", "a/y"], fails=["a/x"])
    assert rows[0]["reason"] == "ResourceExhaustedError: out of memory"
    assert rows[1]["reason"] is None
    assert asked(log, "run") == 3 * ["a/y"]


def test_a_process_that_ended_is_started_again_for_its_other_programs():
    log, rows = turns_of(["a/x", "a/y", "b/z"], ends=["a/y"], rounds=2)
    assert [row["reason"] for row in rows] == [
        None,
        "the process ended with code -9",
        None,
    ]
    assert [row["times"] for row in rows] == [2 * [0.5], [], 2 * [0.5]]
    assert asked(log, "start") == ["a", "b", "a"]
    assert asked(log, "make") == ["a/x", "a/y", "b/z", "a/x"]


def test_a_process_that_the_system_kills_has_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "FOLDER", tmp_path)
    worker = workers.Worker("keras", threads=1)
    worker._process.kill()
    worker._process.wait()
    with pytest.raises(workers.Ended, match="-9"):
        worker.ask(do="drop")
    worker.stop()


def test_a_first_call_over_the_limit_is_not_repeated():
    log, rows = turns_of(["a/x"], limit=1.9)
    assert rows[0]["reason"] == "its first call took 2 s, the limit is 1.9 s"
    assert asked(log, "run") == []


@pytest.mark.parametrize("failing", [False, True])
def test_results_are_replaced_whole(tmp_path, failing):
    path = tmp_path / "bench" / "results.json"
    turns.save(path, {"rows": [1]})
    if failing:
        with pytest.raises(TypeError):
            turns.save(path, {"rows": {2}})  # a set is no JSON
    assert json.loads(path.read_text()) == {"rows": [1]}
