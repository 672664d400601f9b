"""The tasks are what they say, and the command goes on where it was stopped."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from benchmarks.learning import __main__ as command
from benchmarks.learning import (
    models,
    plan,
    pool,
    real_tasks,
    rows,
    swap,
    tasks,
    training,
)
from benchmarks.learning.measuring import measuring
from keras_performer.layers import ExactAttention, LocalAttention

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
    task = real_tasks.sources(64, **OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 4)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert w.all()
    parts = [
        real_tasks.read_sources()[part].tobytes() for part in ("training", "held out")
    ]
    for inputs in task.held_out()[0][0]:
        assert bytes(inputs.astype(np.uint8)) in parts[1]
    assert len(parts[0]) > 9 * len(parts[1])


def test_folds_are_the_digits_once():
    sizes = []
    for fold in range(5):
        ((x, y, _),) = real_tasks.digits(fold, **OPTIONS).held_out()
        assert x.shape[1] == 64 and y.shape[1] == 1
        sizes.append(len(x))
    assert sum(sizes) == 1797


def test_sub_pixels_are_told_from_those_before_them_in_other_regions():
    task = real_tasks.images(**OPTIONS)
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


def trained(task, row):
    return training.train(
        task,
        row,
        key_dim=16,
        seed=0,
        learning_rate=task.learning_rate,
        steps=task.steps,
        evaluations=3,
    )


@pytest.mark.slow
def test_features_are_drawn_anew_after_some_steps(monkeypatch):
    made = []
    make_model = models.make_model
    keep = lambda *given: made.append(make_model(*given)) or made[-1]  # noqa: E731
    monkeypatch.setattr(models, "make_model", keep)
    monkeypatch.setattr(rows, "REDRAW_STEPS", 2)
    options = dict(window=8, steps=4, batch_size=2, learning_rate=1e-3)
    trained(tasks.recall(64, 4, **options), "softmax, redraw")
    counts = [int(block.attention.redraw_count) for block in made[-1].blocks]
    assert counts == [2, 2]  # before steps 1 and 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row"), [("tokens", rows.WITHOUT), ("classes", "taylor")]
)
def test_a_run_trains_and_notes(kind, row):
    task = real_tasks.digits(0, **OPTIONS)
    if kind == "tokens":
        task = tasks.recall(32, 4, **OPTIONS)
    run = trained(task, row)
    steps, seconds, loss, measured = zip(*run["curve"], strict=True)
    assert steps[-1] == 3 and 0 < seconds[-1] == run["seconds"]
    assert np.isfinite(loss).all() and 0 <= measured[-1] <= 1
    assert run["result"] == measured[-1]


@pytest.mark.slow
@pytest.mark.parametrize("make", [tasks.recall, tasks.needle])
def test_training_ends_where_enough_is_recalled(make, monkeypatch):
    values = iter([0.5, 0.996, 1.0])
    monkeypatch.setattr(training, "measuring", lambda *_: lambda: next(values))
    run = trained(make(256, 8, **OPTIONS), rows.WITHOUT)
    assert [point[0] for point in run["curve"]] == [1, 2]
    assert run["result"] == 0.996 and run["steps"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("hidden_dim", [64, 128])
def test_all_rows_have_as_many_parameters(hidden_dim):
    task = tasks.recall(32, 4, **OPTIONS)
    task = dataclasses.replace(task, hidden_dim=hidden_dim)
    sizes = {
        row: models.count_parameters(models.make_model(task, row, 16, seed=0))
        for row in rows.ROWS
    }
    assert sizes[rows.EXACT] == sizes[rows.WINDOW] == sizes["softmax"]
    gains = 2 * hidden_dim // 16  # of each head and block
    assert sizes["window + softmax"] == sizes["softmax"] + gains
    assert abs(sizes[rows.WITHOUT] / sizes[rows.EXACT] - 1) < 0.002


def test_rows_name_the_first_gain():
    task = tasks.recall(64, 8, **OPTIONS)
    for option, gain in (("", 0.0), (", low gain", -3.5), (", high gain", 2.0)):
        layer = rows.attention(f"window + softmax{option}", task, 4, 16)
        layer.build((1, 64, 64))
        np.testing.assert_allclose(10 * layer.log_gain.numpy(), gain, rtol=1e-6)


def test_a_convolution_goes_before_what_the_row_has():
    task = tasks.recall(32, 4, **OPTIONS)
    plain, more = (
        models.make_model(task, row, 16, seed=0) for row in ("window", "window, conv")
    )
    # a kernel and a normalization in each block
    added = 2 * (4 + 2) * task.hidden_dim
    assert models.count_parameters(more) == models.count_parameters(plain) + added
    assert [block.conv_kernel_size for block in more.blocks] == [4, 4]
    alone = models.make_model(task, f"{rows.WITHOUT}, conv", 16, seed=0)
    assert all(block.attention is None and block.convolution for block in alone.blocks)


@pytest.mark.parametrize(
    "task", [tasks.recall(32, 4, **OPTIONS), real_tasks.digits(0, **OPTIONS)]
)
def test_the_last_block_alone_is_exact(task):
    model = models.make_model(task, "window, exact last", 16, seed=0)
    kinds = [type(block.attention) for block in model.blocks]
    assert kinds == [LocalAttention, ExactAttention]
    assert {block.attention.causal for block in model.blocks} == {model.causal}


def test_windows_cover_an_eighth_at_most():
    tasks.recall(64, 8, **{**OPTIONS, "window": 8})
    with pytest.raises(ValueError, match="an eighth of its 64 places. .*window=9"):
        tasks.recall(64, 8, **{**OPTIONS, "window": 9})
    with pytest.raises(ValueError, match="'digits' must cover"):  # 9 pixels of 64
        real_tasks.digits(0, **{**OPTIONS, "window": 5})


def test_tasks_travel_to_workers():
    for task, _ in (*plan.core(), *plan.further()):
        copy = pickle.loads(pickle.dumps(task))
        batches = [t.draw(np.random.default_rng(5), 2) for t in (task, copy)]
        np.testing.assert_array_equal(batches[0][0], batches[1][0])
        np.testing.assert_array_equal(task.held_out()[0][1], copy.held_out()[0][1])


def sharpened(task):
    """A model with exact attention that looks at few tokens, as trained ones do."""
    model = models.make_model(task, rows.EXACT, 16, seed=3)
    for block in model.blocks:
        for name in ("query_dense", "key_dense", "output_dense"):
            kernel = getattr(block.attention, name).kernel
            kernel.assign(4 * kernel)
    return model


def short_sources():
    """A task of 128 bytes with little to measure."""
    task = real_tasks.sources(128, **{**OPTIONS, "window": 16})
    held_out = task.held_out()[:2]
    return dataclasses.replace(task, held_out=lambda: held_out)


@pytest.mark.parametrize("window", [128, 16])
def test_a_window_of_the_whole_length_loses_nothing(window):
    task = short_sources()
    model = sharpened(task)
    local = LocalAttention(num_heads=8, key_dim=16, causal=True, sliding_window=window)
    other = models.model_with(local, task, 16, seed=4)
    swap.copy_weights(model, other)
    lost = measuring(other, task)() - measuring(model, task)()
    assert abs(lost) < 1e-5 if window == 128 else abs(lost) > 1e-3


@pytest.mark.slow
def test_swaps_lose_what_other_attention_with_the_same_weights_loses(monkeypatch):
    task = short_sources()
    model = sharpened(task)
    monkeypatch.setattr(swap, "SWAPPED", ["window + taylor"])
    lost = swap.bits_lost(model, task, 16, seed=1)
    assert list(lost) == swap.SWAPPED

    def bits(row, seed):
        other = models.make_model(task, row, 16, seed)
        other.embedding.set_weights(model.embedding.get_weights())
        other.positions.set_weights(model.positions.get_weights())
        other.norm.set_weights(model.norm.get_weights())
        other.head.set_weights(model.head.get_weights())
        for block, source in zip(other.blocks, model.blocks):
            for name in ("attention_norm", "feedforward_norm", "expand", "contract"):
                weights = getattr(source, name).get_weights()
                getattr(block, name).set_weights(weights)
            for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
                weights = getattr(source.attention, name).get_weights()
                getattr(block.attention, name).set_weights(weights)
        return measuring(other, task)()

    expected = bits("window + taylor", 0) - measuring(model, task)()
    assert abs(expected) > 1e-2
    np.testing.assert_allclose(lost["window + taylor"], expected, atol=1e-3)


def planned(*flags):
    return plan.plan(command.make_parser().parse_args(flags))


def test_the_core_has_every_control_and_one_seed_after_another():
    runs = planned()
    for name in ("recall 512", "images 768", "digits"):
        of_task = [run for run in runs if run["task"].name == name]
        features = {"softmax", "window + softmax"}
        assert {run["row"] for run in of_task} >= {*rows.ROWS[:3], *features}
        gains = {run["row"] for run in of_task} & {"window + softmax, high gain"}
        assert bool(gains) == (name == "recall 512")
        for row in rows.ROWS[:3]:
            seeds = [run["seed"] for run in of_task if run["row"] == row]
            assert seeds == ([0, 1, 2, 3, 4] if name == "digits" else [0, 1, 2])
    assert [run["seed"] for run in runs] == sorted(run["seed"] for run in runs)
    assert {run["key_dim"] for run in runs} == {16}


def test_what_is_named_is_chosen_from_all():
    chosen = "--tasks", "bytes 2,048, rotary", "--key-dims", "64", "--rows", "elu"
    runs = planned(*chosen)
    assert [run["seed"] for run in runs] == [0, 1, 2]
    assert {(run["task"].length, run["key_dim"]) for run in runs} == {(2048, 64)}
    some = planned("--tasks", "recall 512", "--seeds", "0", "--rows", "elu", "exact")
    assert [run["row"] for run in some] == ["exact", "elu"]  # controls first
    quick = planned("--quick", "--tasks", "recall 512")
    assert [run["steps"] for run in quick] == [30] * 5
    assert {run["evaluations"] for run in quick} == {3}
    controls = [rows.WITHOUT, rows.EXACT, rows.WINDOW]
    assert [run["row"] for run in quick] == [*controls, "taylor", "window + taylor"]


def test_the_whole_has_every_task_row_size_and_rate():
    runs = planned("--full")
    assert len({plan.name_of(run) for run in runs}) == len(runs)
    assert {*map(plan.name_of, runs)} >= {*map(plan.name_of, planned())}
    for name in plan.task_names():
        of_task = [run for run in runs if run["task"].name == name]
        assert {run["row"] for run in of_task} >= {*rows.ROWS}
        base = of_task[0]["task"].learning_rate
        rates = {run["learning_rate"] / base for run in of_task if run["seed"] == 0}
        others = {run["learning_rate"] / base for run in of_task if run["seed"] > 0}
        in_core = name in ("recall 512", "images 768", "digits")
        expected = [1 / 3, 1, 3] if in_core else [1]
        np.testing.assert_allclose(sorted(rates), expected)
        assert others == ({1} if in_core else set())
    assert {run["row"] for run in runs} == {*rows.ROWS, *rows.FURTHER}
    assert {run["key_dim"] for run in runs} == {16, 32, 64}
    larger = planned("--full", "--key-dims", "64", "--rows", "exact")
    assert [run["task"].name for run in larger] == ["recall 128", "bytes 512, rotary"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tasks", "recal 512"], ["recal 512", "'recall 512'", "'needle 1,024'"]),
        (["--rows", "sofmax"], ["sofmax", "'window + softmax'", "'elu'"]),
        (["--key-dims", "8"], ["16, 32, 64"]),
        (["--seeds", "7"], ["0, 1, 2, 3, 4"]),
        (["--tasks", "recall 128", "--seeds", "4"], ["No chosen task has seed 4"]),
    ],
)
def test_unknown_names_say_what_there_is(flags, words, capsys):
    with pytest.raises(SystemExit):
        command.main(flags)
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.slow
def test_workers_train_what_is_missing(tmp_path, monkeypatch):
    tiny = tasks.recall(64, 8, **OPTIONS)
    monkeypatch.setattr(plan, "core", lambda: [(tiny, (0, 1))])
    flags = ["--rows", rows.WITHOUT, "--output", str(tmp_path), "--workers"]
    command.main([*flags, "0", "--seeds", "0"])
    command.main([*flags, "1"])
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["seed"], second["seed"]) == (0, 1)
    assert second["threads"] == 1
    runs = planned("--rows", rows.WITHOUT, "--seeds", "1")
    (alone,) = pool.results(training.train, runs, 0)
    np.testing.assert_allclose(second["result"], alone["result"], atol=1e-3)


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    calls = []

    def train(task, row, key_dim, seed, learning_rate, steps, evaluations):
        calls.append((task.name, row, seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {
            "task": task.name,
            "measure": task.measure,
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
            "seconds_in_all": 2.0,
            "threads": 1,
            "machine": "one",
            "tensorflow": "2.21.0",
            "curve": [[1, 0.5, 2.0, 0.25], [2, 1.0, 1.0, 0.5 + seed / 4]],
        }

    monkeypatch.setattr(training, "train", train)
    flags = ["--tasks", "recall 128", "--rows", rows.EXACT, "softmax", "--seeds"]
    flags += ["0", "1", "--workers", "0", "--output", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        command.main(flags)
    command.main([*flags, "--report-only"])
    assert len(calls) == 3 and "0.500" in (tmp_path / "tables.md").read_text()
    command.main(flags)
    assert len(calls) == 5 and len(set(calls)) == 4
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 0, 1, 1]
    assert "0.625 | 0.177 | 0.500 / 0.750" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    # a report of the whole has what was made, though it plans one seed of this task
    command.main(["--full", "--report-only", "--output", str(tmp_path)])
    assert "0.625 | 0.177 | 0.500 / 0.750" in (tmp_path / "tables.md").read_text()
