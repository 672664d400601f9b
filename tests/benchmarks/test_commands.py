"""Commands at tiny sizes, and tables from recorded results."""

import json
import shutil

import numpy as np
import pytest

from benchmarks import (
    accuracy,
    decoding,
    generation,
    measure,
    options,
    recompute,
    runner,
    startup,
    turns,
)
from benchmarks.conversion import speed
from benchmarks.gpu import layers
from benchmarks.gpu import report as gpu
from benchmarks.learning import __main__ as learning
from benchmarks.learning import models, tasks
from benchmarks.long_data import documents, needles
from benchmarks.long_range import __main__ as long_range
from benchmarks.long_range import costs

SHORT = dict(window=4, steps=3, batch_size=2, learning_rate=1e-3)


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize(
    "main, folder, flags",
    [
        (learning.main, "learning", "--full"),
        (long_range.main, "long_range", "--full"),
        (accuracy.main, "accuracy", ""),
        (generation.main, "generation", ""),
        (generation.main, "generation/prompts_4000", ""),
        (gpu.main, "gpu", None),
        (needles.main, "long_data/needles", "--full"),
        (documents.main, "long_data/documents", "--full"),
    ],
)
def test_tables_are_those_of_the_results(main, folder, flags, tmp_path):
    for path in (runner.RESULTS / folder).glob("*.*"):
        if path.name != "tables.md":
            shutil.copy(path, tmp_path)
    said = ["--results"] if flags is None else [*flags.split(), "--report-only"]
    main([*said, *([] if flags is None else ["--output"]), str(tmp_path)])
    found, kept = (
        dict(map(section_of, (each / "tables.md").read_text().split("\n## ")))
        for each in (tmp_path, runner.RESULTS / folder)
    )
    assert {title: found.get(title) for title in kept} == kept
    assert sum(map(len, kept.values())) > 3


def section_of(text):
    return text.splitlines()[0], lines_of(text)


def test_the_page_shows_the_table_of_a_kept_result():
    folder = runner.RESULTS.parent
    page = (folder / "README.md").read_text()
    kept = (runner.RESULTS / "layer" / "tables.md").read_text()
    table = kept[kept.index(f"## {measure.overview.__doc__}") :].split("\n\n")[1]
    assert table.count("\n") == 1 + 7 and table in page


def of_half_a_second(rows, pool, rounds, limit):
    for row in rows:
        row.update(times=[] if row["reason"] else [9, 0.5, 0.4], peak_bytes=3 * 2**20)
        row["first_call_seconds"] = 2.04


@pytest.fixture
def instant(monkeypatch):
    """Makes programs that take turns take half a second; installs nothing."""
    monkeypatch.setattr(turns, "take_turns", of_half_a_second)
    monkeypatch.setattr(turns, "install", lambda environment: None)
    monkeypatch.setattr(runner, "free_bytes", lambda: 3 * 2**34)


def test_measurement(tmp_path, instant, monkeypatch, capsys):
    monkeypatch.setattr(measure, "MEMORY_LENGTHS", (16384,))
    monkeypatch.setattr(runner, "free_bytes", lambda: 2**34)
    measure.main(["--output", str(tmp_path), "--lengths", "256", "16384"])
    text = (tmp_path / "tables.md").read_text()
    assert f"| 256 |{6 * ' 500 / 500 |'}" in text
    # 8 x 16,384 x 16,384 x 3 float32; 4,096 times 0.4 s is more than the limit
    assert "| 16,384 | 500 / 500 | needs 26 GB | not run |" in text
    assert "| 16,384 | 3 / 3 |" in text


def test_decoding(tmp_path, instant, capsys):
    decoding.main(["--output", str(tmp_path), "--batches", "1", "64"])
    # 64 steps of 64 sequences in half a second
    line = "| exact, key-value cache | xla | 64 | 12000 | 8192 | 7.812 | 1.00 | 1.0 |"
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_generation(tmp_path, instant):
    # 3 matrices of 64 x 4 heads of 4,096 x 4,096 float32
    flags = "--prompts 4000 --batches 8 64 --new-tokens 96 --output"
    generation.main([*flags.split(), str(tmp_path)])
    lines = (tmp_path / "tables.md").read_text().splitlines()
    assert "| 4,000 | 96 | 8 | 1536.0 | 1536.0 | 1536.0 | 1.00 |" in lines
    assert lines[-1].startswith("| 4,000 | 96 | 64 | 12288.0 | needs 52 GB, more")


@pytest.mark.slow
def test_startup(tmp_path, monkeypatch):
    monkeypatch.setattr(startup.ours, "start", lambda threads: {})
    monkeypatch.setattr(startup.worker, "pin", lambda threads: None)
    case = {"mode": "graph", "depth": 0, "name": "causal, window"}
    case |= {"width": 32, "heads": 2, "length": 16}
    nodes, _, seconds = startup.first_step(case, 1)
    assert nodes > 100 and seconds > 0
    values = iter([3.0, 2.0, 1.0] * 99)

    def made(function, case, threads):
        return 100, {"tensorflow": "2.x"}, next(values)

    monkeypatch.setattr(runner, "in_new_process", made)
    startup.main(["--quick", "--repeats", "2", "--output", str(tmp_path)])
    lines = lines_of((tmp_path / "tables.md").read_text())
    assert len(lines) == 2 + len(startup.LAYERS) + len(startup.MODELS)
    assert "| one layer | exact | graph | 1.0 | 1.00 | 100 | 1.00 |" in lines


def test_options(capsys, monkeypatch):
    once = "set_intra_op_parallelism_threads"  # a process can call it only once
    monkeypatch.setattr(options.tf.config.threading, once, lambda number: None)
    flags = "--lengths 128 --pairs 3 --only"
    name = "segments of 512 and a window, causal"
    options.main([*flags.split(), name])
    (line,) = lines_of(capsys.readouterr().out)[2:]
    found, _, ratio, quartiles = line.strip("| ").split(" | ")
    low, high = map(float, quartiles.split("-"))
    assert found == name and 0 < low <= float(ratio) <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, flags, rows",
    [
        (recompute, ["--lengths", "64"], 3),
        (speed, ["--lengths", "1024"], 4),
    ],
)
def test_steps_in_their_processes(command, flags, rows, monkeypatch, capsys, eagerly):
    def here(function, *arguments, start):
        return function(*arguments)

    monkeypatch.setattr(runner, "in_new_process", here)
    command.main(flags)
    lines = lines_of(capsys.readouterr().out)
    assert len(lines) == 2 + rows and all(" MB" in line for line in lines[2:])


@pytest.mark.slow
def test_learning_goes_on_where_it_was_stopped(tmp_path, monkeypatch, eagerly):
    tiny = tasks.recall(64, 8, **SHORT)
    monkeypatch.setattr(learning, "core", lambda: [tiny])
    flags = ["--rows", models.WITHOUT, "--output", str(tmp_path), "--workers", "0"]
    learning.main([*flags, "--seeds", "0"])
    learning.main([*flags, "--seeds", "0", "1"])
    first, second = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert (first["seed"], second["seed"]) == (0, 1)
    # an untrained model guesses one of 64 values
    assert first["result"] < 0.1 and np.isfinite(first["curve"][-1][2])
    mean = (first["result"] + second["result"]) / 2
    text = (tmp_path / "tables.md").read_text()
    assert f"| no attention | 0.001 | {mean:.3f} |" in text


@pytest.mark.slow
def test_long_range(tmp_path, monkeypatch, eagerly):
    monkeypatch.setattr(tasks, "HELD_OUT_DIGITS", 8)
    monkeypatch.setattr(tasks, "DIGITS_AT_ONCE", 4)
    size = dict(batch_size=4, learning_rate=1e-3)
    task = tasks.digits_anywhere(8, steps=2, decay=True, has_reader=True, **size)
    monkeypatch.setattr(long_range, "core", lambda: [task])
    flags = ["--tasks", task.name, "--seeds", "0", "--output", str(tmp_path)]
    flags += ["--workers", "0", "--rows", models.WITHOUT]
    long_range.main(flags)
    run = json.loads((tmp_path / "runs.jsonl").read_text())
    assert run["row"] == "no attention"
    # 8 images of ten classes
    assert 8 * run["result"] == round(8 * run["result"])
    large = {1024: {"tokens_a_second": 1, "bytes": costs.LARGEST / 15}}
    assert costs.measured(models.EXACT, 4096, large) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [(needles, "needle 512 in text, 1 key"), (documents, "documents 512")],
)
def test_long_data(script, name, tmp_path, monkeypatch, eagerly):
    monkeypatch.setattr(tasks, "fixed", lambda draw, *_: tasks.same_batches(draw, 4, 2))
    flags = ["--lengths", "512", "--steps", "2", "--workers", "0", "--rows"]
    flags += [models.WITHOUT, "--output", str(tmp_path / "out")]
    script.main(flags)
    lines = (tmp_path / "out/runs.jsonl").read_text().splitlines()
    (run,) = (run for run in map(json.loads, lines) if run["task"] == name)
    values = np.array([point[2:] for point in run["curve"]])
    assert values.shape == (2, 2) and np.isfinite(values).all()
    result = f"| {run['row']} | {run['result']:.3f} | "
    assert result in (tmp_path / "out/tables.md").read_text()


def test_accuracy(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "LENGTH", 64)
    monkeypatch.setattr(accuracy, "DRAWS", 2)
    monkeypatch.setattr(accuracy, "SETTINGS", [(16, 0.25, (16, 64))])
    accuracy.main(["--output", str(tmp_path)])
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    found = {(row["estimator"], row["features"]): row["relative_error"] for row in rows}
    # small queries and keys: each estimate is better than the one before
    names = (accuracy.AVERAGE, None), ("softmax", 64), ("taylor", None)
    errors = [found[name] for name in names]
    assert errors == sorted(errors, reverse=True) and errors[-1] > 0
    assert f"{errors[1]:.4f} ± " in (tmp_path / "tables.md").read_text()


def test_gpu_measures_no_case_of_its_file_again(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "SIZES", ((1, 16),))
    monkeypatch.setattr(layers, "OF_ROW", {layers.EXACT: ((1, 16),)})
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
