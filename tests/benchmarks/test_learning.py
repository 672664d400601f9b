"""The tasks are what they say, and the command goes on where it was stopped."""

import json

import numpy as np
import pytest

from benchmarks.learning import __main__ as command
from benchmarks.learning import rows, tasks, training

OPTIONS = dict(window=4, steps=3, batch_size=2, learning_rate=1e-3)


def test_recall_asks_for_the_values_of_keys():
    task = tasks.recall(64, 8, **OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 20)
    for inputs, targets, weights in zip(x, y, w, strict=True):
        pairs = dict(zip(inputs[0:16:2], inputs[1:16:2], strict=True))
        assert len(pairs) == 8
        asked = weights > 0
        assert asked[16:].mean() > 0.2 and not asked[:16].any()
        assert [pairs[key] for key in inputs[asked]] == targets[asked].tolist()
        assert not inputs[16:][~asked[16:]].any()
    assert x.max() < task.vocabulary_size


def test_a_needle_is_asked_for_at_the_end():
    task = tasks.needle(256, **OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 20)
    for inputs, targets, weights in zip(x, y, w, strict=True):
        places = np.flatnonzero(inputs[:192] >= tasks.FILLER)
        keys, values = inputs[places[::2]], inputs[places[1::2]]
        assert len(places) == 16 and (np.diff(places)[::2] == 1).all()
        pairs = dict(zip(keys, values, strict=True))
        assert [pairs[key] for key in inputs[192:]] == targets[192:].tolist()
        assert weights[192:].all() and not weights[:192].any()


def test_targets_are_the_next_bytes_of_other_files_than_held_out():
    task = tasks.sources(64, **OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 4)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert w.all()
    parts = [tasks.read_sources()[part].tobytes() for part in ("training", "held out")]
    for inputs in task.held_out()[0][0]:
        assert bytes(inputs.astype(np.uint8)) in parts[1]
    assert len(parts[0]) > 9 * len(parts[1])


def test_folds_are_the_digits_once():
    sizes = []
    for fold in range(5):
        ((x, y, _),) = tasks.digits(fold, **OPTIONS).held_out()
        assert x.shape[1] == 64 and y.shape[1] == 1
        sizes.append(len(x))
    assert sum(sizes) == 1797


@pytest.mark.parametrize("row", [rows.WITHOUT, "window + softmax", "taylor"])
@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_a_run_trains_and_notes(row, kind):
    task = tasks.digits(0, **OPTIONS)
    if kind == "tokens":
        task = tasks.recall(32, 4, **OPTIONS)
    run = training.train(task, row, key_dim=16, seed=0)
    steps, seconds, loss, measured = zip(*run["curve"], strict=True)
    assert steps[-1] == 3 and 0 < seconds[-1] == run["seconds"]
    assert np.isfinite(loss).all() and 0 <= measured[-1] <= 1
    assert run["result"] == measured[-1]


def test_controls_have_no_more_parameters_than_features():
    task = tasks.recall(32, 4, **OPTIONS)
    models = {row: training.make_model(task, row, 16, seed=0) for row in rows.ROWS}
    sizes = {
        row: sum(int(np.prod(w.shape)) for w in model.trainable_weights)
        for row, model in models.items()
    }
    assert sizes[rows.EXACT] == sizes[rows.WINDOW] == sizes["softmax"]
    gains = 2 * 4  # of each head and block
    assert sizes["window + softmax"] == sizes["softmax"] + gains
    assert sizes[rows.WITHOUT] < sizes[rows.EXACT]


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    calls = []

    def train(task, row, key_dim, seed, learning_rate, steps):
        calls.append((task.name, row, seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {
            "task": task.name,
            "row": row,
            "key_dim": key_dim,
            "seed": seed,
            "learning_rate": learning_rate,
            "steps": steps,
            "window": task.window,
            "parameters": 1,
            "state": 2,
            "result": 0.5 + seed / 4,
            "seconds": 1.0,
            "curve": [[1, 0.5, 2.0, 0.25], [2, 1.0, 1.0, 0.5 + seed / 4]],
        }

    monkeypatch.setattr(training, "train", train)
    flags = ["--tasks", "recall 128", "--rows", rows.EXACT, "softmax", "--seeds"]
    flags += ["0", "1", "--output", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        command.main(flags)
    command.main(flags)
    assert len(calls) == 5 and len(set(calls)) == 4
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 0, 1]
    assert "0.625 | 0.177 | 0.500 / 0.750" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "curves.png").stat().st_size > 10_000
