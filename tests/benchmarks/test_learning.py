"""The tasks are what they say, rows are of one size, tables say what the runs say."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from benchmarks.learning import __main__ as command
from benchmarks.learning import models, report, tasks, times, training
from keras_performer.layers import LocalAttention

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


def test_sub_pixels_are_told_from_those_before_them_in_other_regions():
    task = tasks.images(**OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 5)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert not x[:, 0].any() and w.all()
    held_out = np.concatenate([targets for _, targets, _ in task.held_out()])
    assert held_out.shape == (64, 768) and np.unique(held_out, axis=0).shape[0] == 64
    # each is a piece of a photograph: trained on from its left, held out from the rest
    pictures = load_sample_images().images
    for images, in_region in (
        (y, lambda left: left <= 512 - 16),
        (held_out[::9], lambda left: left >= 512),
    ):
        for image in images.reshape(-1, 16, 16, 3):
            assert in_region(left_of(image, pictures))


def left_of(image, pictures):
    """The column from which on an image stands in one of the pictures."""
    for picture in pictures:
        pieces = np.lib.stride_tricks.sliding_window_view(picture, (1, 16), (0, 1))
        for top, left in np.argwhere((pieces[:, :, :, 0] == image[0].T).all((2, 3))):
            if (picture[top : top + 16, left : left + 16] == image).all():
                return left
    raise AssertionError("The image stands in no picture.")


def test_windows_cover_an_eighth_at_most():
    tasks.recall(64, 8, **{**OPTIONS, "window": 8})
    with pytest.raises(ValueError, match="an eighth of its 64 places. .*window=9"):
        tasks.recall(64, 8, **{**OPTIONS, "window": 9})
    with pytest.raises(ValueError, match="'digits' must cover"):  # 9 pixels of 64
        tasks.digits(0, **{**OPTIONS, "window": 5})


@pytest.mark.slow
def test_all_rows_have_as_many_parameters():
    task, hidden_dim = tasks.recall(32, 4, **OPTIONS), 64
    task = dataclasses.replace(task, hidden_dim=hidden_dim)
    sizes = {
        row: models.count_parameters(models.make_model(task, row, 16, seed=0))
        for row in (*models.ROWS, "window, conv")
    }
    assert sizes[models.EXACT] == sizes[models.WINDOW] == sizes["softmax"]
    gains = 2 * hidden_dim // 16  # of each head and block
    assert sizes["window + softmax"] == sizes["softmax"] + gains
    # a kernel and a normalization in each block
    assert sizes["window, conv"] == sizes["window"] + 2 * (4 + 2) * hidden_dim
    assert abs(sizes[models.WITHOUT] / sizes[models.EXACT] - 1) < 0.002


def test_rows_are_what_their_names_say():
    task = tasks.recall(64, 8, **OPTIONS)
    for option, gain in (("", 0.0), (", low gain", -3.5), (", high gain", 2.0)):
        layer = models.attention_of(f"window + softmax{option}", task, 4, 16)
        layer.build((1, 64, 64))
        np.testing.assert_allclose(layer.log_gain.numpy(), gain, rtol=1e-6)
    model = models.make_model(task, "window, exact last", 16, seed=0)
    kinds = [type(block.attention).__name__ for block in model.blocks]
    assert kinds == ["LocalAttention", "ExactAttention"]


@pytest.mark.parametrize("window", [64, 8])
def test_a_window_of_the_whole_length_loses_nothing(window):
    """The model looks at few tokens, as trained models do."""
    task = tasks.sources(64, **{**OPTIONS, "window": 8})
    held_out = task.held_out()[:1]
    task = dataclasses.replace(task, held_out=lambda: held_out)
    model = models.make_model(task, models.EXACT, 16, seed=3)
    for block in model.blocks:
        for name in ("query_dense", "key_dense", "output_dense"):
            kernel = getattr(block.attention, name).kernel
            kernel.assign(4 * kernel)
    local = LocalAttention(num_heads=8, key_dim=16, causal=True, sliding_window=window)
    other = models.model_with(local, task, 16, seed=4)
    training.copy_weights(model, other)
    bits = [training.measuring(one, task)() for one in (other, model)]
    lost = bits[0] - bits[1]
    assert abs(lost) < 1e-5 if window == 64 else abs(lost) > 1e-3
    swapped = training.swapped(model, task, "window", 16, seed=5)
    if window == 8:  # that of the task
        assert training.measuring(swapped, task)() == pytest.approx(bits[0], abs=1e-5)


@pytest.mark.slow
def test_features_are_drawn_anew_after_some_steps(monkeypatch, eagerly):
    made = []
    make_model = models.make_model
    keep = lambda *given: made.append(make_model(*given)) or made[-1]  # noqa: E731
    monkeypatch.setattr(models, "make_model", keep)
    monkeypatch.setattr(models, "REDRAW_STEPS", 2)
    task = tasks.recall(64, 4, **{**OPTIONS, "window": 8, "steps": 4})
    training.train(task, "softmax, redraw", 16, 0, 1e-3, 4, 3)
    counts = [int(block.attention.redraw_count) for block in made[-1].blocks]
    assert counts == [2, 2]  # before steps 1 and 3


@pytest.mark.slow
def test_training_ends_where_enough_is_recalled(monkeypatch, eagerly):
    values = iter([0.5, 0.996, 1.0])
    monkeypatch.setattr(training, "measuring", lambda *_: lambda: next(values))
    task = tasks.needle(256, 8, **OPTIONS)
    run = training.train(task, models.WITHOUT, 16, 0, 1e-3, steps=3, evaluations=3)
    assert [point[0] for point in run["curve"]] == [1, 2]
    assert run["result"] == 0.996 and run["steps"] == 3


@pytest.mark.slow
def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, eagerly):
    tiny = tasks.recall(64, 8, **OPTIONS)
    monkeypatch.setattr(command, "core", lambda: [(tiny, (0, 1))])
    flags = ["--rows", models.WITHOUT, "--output", str(tmp_path), "--workers", "0"]
    command.main([*flags, "--seeds", "0"])
    command.main(flags)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["seed"], second["seed"]) == (0, 1)
    # a model that has learned nothing guesses one of 64 values
    assert first["result"] < 0.1 and np.isfinite(first["curve"][-1][2])
    assert first["state"] == 0
    text = (tmp_path / "tables.md").read_text()
    mean = (first["result"] + second["result"]) / 2
    assert f"| no attention | 0.001 | {mean:.3f} |" in text


def run(row, result, seconds=10.0, **options):
    """A run of 100 steps, measured at 50 and 100."""
    middle = (1.0 + result) / 2
    return {
        **{"task": "bytes 512", "measure": "bits", "row": row, "key_dim": 16},
        **{"seed": 0, "learning_rate": 1e-3, "steps": 100, "window": 64},
        **{"parameters": 1234, "state": 4096, "result": result, "threads": 1},
        **{"seconds_in_all": 1800.0, "machine": "one", "tensorflow": "2.21.0"},
        "curve": [[50, seconds / 2, 3.0, middle], [100, seconds, 2.0, result]],
        **options,
    }


def test_tables_by_hand(tmp_path):
    swap = {"window": 0.2, "taylor": 0.1}
    runs = [
        run(models.WITHOUT, 4.0, seconds=1.0),
        run(models.EXACT, 3.0, seconds=40.0, swap=swap),
        run(models.EXACT, 3.2, seconds=40.0, seed=1),
        run("softmax", 3.5, seconds=20.0),
        run("softmax", 3.3, seconds=20.0, seed=1),
        run("softmax", 1.0, seconds=20.0, learning_rate=1e-4),  # of one seed alone
    ]
    (tmp_path / "times.json").write_text("{}")
    text = report.write(runs, tmp_path)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    rows = [line[1:] for line in lines if line[0] == "softmax" and len(line) > 9]
    # 0.5 and 0.1 behind the same seeds of exact attention
    plain = "3.400", "0.141", "3.500 / 3.300", "+0.300 ± 0.200", "3.400", "200"
    assert rows[0] == ["0.001", *plain, "4,096", "1,234"]
    exact = next(line for line in lines if line[0] == "exact")
    assert exact[6] == "2.050"  # after 20 s: halfway
    assert "after 20 s" in text and "| 4.000 (n = 1) | 3.100 | – | 3.400 |" in text
    assert "| window | 0.200 (0.200) |" in text
    times_of = {"machine": "one", "tensorflow": "2", "bytes 512": {"exact, 16": 0.02}}
    (tmp_path / "times.json").write_text(json.dumps(times_of))
    timed, other = times.retold([runs[1], runs[3]], tmp_path)
    assert timed["curve"] == [[50, 1.0, 3.0, 2.0], [100, 2.0, 2.0, 3.0]]
    assert other["curve"][-1][0] == 100 and np.isnan(other["curve"][-1][1])
    text = report.write(runs, tmp_path)  # a row that is not timed shows no times
    (untimed,) = (line for line in text.splitlines() if "| 3.500 / 3.300 |" in line)
    assert "| +0.300 ± 0.200 | – | – | 4,096 |" in untimed
    assert "after 2 s" in text
    assert report.write([], tmp_path) == "# Does it learn?\n\nNo runs."
