"""Tasks of long sequences, models of equal size, and what is said of their runs."""

import dataclasses
import json
import statistics

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import processes
from benchmarks.learning import tasks as short
from benchmarks.learning.models import count_parameters
from benchmarks.long_range import (
    __main__ as command,
)
from benchmarks.long_range import (
    costs,
    listops,
    models,
    report,
    tasks,
    training,
)

SMALL = dict(steps=2, warm_up_steps=2, batch_size=4, hidden_dim=32, learning_rate=1e-3)


@pytest.fixture
def few_held_out(monkeypatch):
    monkeypatch.setattr(tasks, "HELD_OUT", 8)
    monkeypatch.setattr(tasks, "TOKENS_AT_ONCE", 256)
    monkeypatch.setattr(training, "NUM_COUNTED", 50)


def lists(ids):
    """The nested lists of ids: an operator first, and arguments."""
    stack = [[]]
    for word in (listops.TOKENS[token] for token in ids if token):
        if word == "]":
            closed = stack.pop()
            stack[-1].append(closed)
        elif word.startswith("["):
            stack.append([word.removeprefix("[")])
        else:
            stack[-1].append(int(word))
    ((outermost,),) = stack
    return outermost


def worth(nested):
    """By what is written in the paper, not by the functions that draw."""
    if isinstance(nested, int):
        return nested
    operator, *arguments = nested
    values = [worth(argument) for argument in arguments]
    return {
        "MIN": lambda: sorted(values)[0],
        "MAX": lambda: sorted(values)[-1],
        "MED": lambda: int(statistics.median(values)),
        "SM": lambda: int(str(sum(values))[-1]),
    }[operator]()


def test_answers_of_listops_are_those_of_a_slow_evaluator():
    ids = [[*map(listops.TOKENS.index, "[SM 9 9 [MED 1 8 3 ] ]".split()), 0]]
    assert worth(lists(ids[0])) == 1  # on paper: 9 + 9 + 3 = 21
    x, y, w = listops.draw(100, 500, np.random.default_rng(0), 2000)
    assert [worth(lists(row)) for row in x] == y[:, 0].tolist() and (w == 1).all()
    lengths = (x > 0).sum(1)
    assert 100 <= lengths.min() < 105 and 490 < lengths.max() <= 500
    for row, length in zip(x, lengths):
        assert row[:length].all()  # padding follows
    assert {*np.unique(x)} == {*range(listops.VOCABULARY_SIZE)}
    # what is right without reading on, as the docstring says
    nested = [lists(row) for row in x]
    operators = np.array([one[0] for one in nested])
    outermost = [np.bincount(y[operators == name, 0]).max() for name in {*operators}]
    digits = [[z for z in one[1:] if isinstance(z, int)] for one in nested]
    shallow = np.mean(
        [
            (worth([one[0], *few]) if few else 0) == answer
            for one, few, (answer,) in zip(nested, digits, y)
        ]
    )
    assert abs(np.bincount(y[:, 0]).max() / len(y) - 0.16) < 0.033
    assert abs(sum(outermost) / len(y) - 0.34) < 0.043
    assert abs(shallow - 0.50) < 0.045
    with pytest.raises(ValueError, match="ask for more lengths"):
        listops.draw(11, 11, np.random.default_rng(0), 1, max_args=2)


def test_a_digit_stands_enlarged_on_an_empty_canvas():
    places = set()
    parts = {}
    for part in "training", "held out":
        x, y, _ = tasks.draw_digits(part, 20, 2, np.random.default_rng(0), 300)
        parts[part] = set()
        for image, (label,) in zip(x.reshape(-1, 20, 20), y):
            tops, lefts = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
            found = [
                (top, left, index)
                for top in range(max(0, tops[-1] - 15), min(tops[0], 4) + 1)
                for left in range(max(0, lefts[-1] - 15), min(lefts[0], 4) + 1)
                for index in np.flatnonzero(
                    (DIGITS == image[top : top + 16 : 2, left : left + 16 : 2]).all(
                        (1, 2)
                    )
                )
            ]
            # where it stands can be told, but for rows and columns of zeros
            assert label in {short.read_digits().target[i] for *_, i in found}
            places.add(found[0][:2])
            parts[part] |= {index for *_, index in found}
    assert len(places) > 15
    assert not parts["training"] & parts["held out"]


DIGITS = short.read_digits().images.astype(int)


@pytest.mark.slow
def test_models_are_of_one_size():
    task = tasks.list_operations(128, **{**SMALL, "hidden_dim": 64})
    sizes = {
        row: count_parameters(models.make_encoder(task, row, seed=0))
        for row in models.MODELS
    }
    for row, size in sizes.items():
        assert abs(size / sizes[models.EXACT] - 1) < 0.01, row


def test_every_row_has_an_attention_of_its_own():
    kinds = set()
    for row in models.MODELS[1:]:
        layer = models.attention_of(row, 64, 4, 2, 16)
        config = layer.get_config() | {"name": None}
        kinds.add((type(layer).__name__, json.dumps(config, default=str)))
        if row in models.NOT_CAUSAL:
            with pytest.raises(ValueError, match="causal"):
                models.attention_of(row, 64, 4, 2, 16, causal=True)
        else:
            assert models.attention_of(row, 64, 4, 2, 16, causal=True).causal
    assert len(kinds) == len(models.MODELS) - 1


def test_padding_is_not_seen():
    task = tasks.list_operations(16, **SMALL)
    model = models.Reader(models.make_encoder(task, models.EXACT, seed=0), task, 10)
    inputs = np.array([[5, 1, 2, 3, 15]])
    longer = np.pad(inputs, ((0, 0), (0, 6)))
    np.testing.assert_allclose(model(inputs), model(longer), atol=1e-5)
    graph = tf.function(lambda x: model(x, training=True), autograph=False)
    np.testing.assert_allclose(graph(longer), model(longer, training=True), atol=1e-5)
    model.padded = False  # where 0 is a token, it counts
    assert np.abs(model(longer) - model(inputs)).max() > 1e-3


def test_some_tokens_are_hidden_and_asked_for():
    task = tasks.list_operations(128, **SMALL)
    random = np.random.default_rng(3)
    inputs, targets, weights = training.hiding(task).draw(random, 64)
    asked = weights > 0
    assert (inputs[asked] == task.vocabulary_size).all()
    np.testing.assert_array_equal(inputs[~asked], targets[~asked])
    assert (targets[asked] != models.PADDING).all()
    share = asked.sum() / (targets != models.PADDING).sum()
    assert abs(share - training.HIDDEN_PART) < 0.02


@pytest.mark.slow
def test_a_warm_up_trains_the_model_that_is_trained_then(
    few_held_out, monkeypatch, eagerly
):
    task = tasks.digits(8, 1, **SMALL)
    kept = []
    learn = training.learn

    def watched(model, task, *given, **options):
        before = model.encoder.get_weights()
        curve = learn(model, task, *given, **options)
        kept.append((task.measure, before, model.encoder.get_weights()))
        return curve

    monkeypatch.setattr(training, "learn", watched)
    run = training.train(task, models.WITHOUT, 0, 1e-3, 2, 2, 1)
    (bits, _, warmed), (accuracy, started, trained) = kept
    assert (bits, accuracy) == ("bits", "accuracy")
    for a, b in zip(warmed, started, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(started, trained))
    # nothing is learned of 17 tokens in two steps: about log2(17) bits
    assert 2 < run["warm_up_bits"] < 8


def test_controls_count_tokens():
    random = np.random.default_rng(0)

    def draw(num):
        """Class 1 has more ones, in a random order, and begins with 3 in 3 of 4."""
        y = random.integers(2, size=(num, 1))
        x = (random.random((num, 40)) < 0.3 + 0.4 * y).astype(int)
        first = np.where(random.random((num, 1)) < 0.75, y, 1 - y)
        x[:, :1] = 2 + first
        return x, y, np.ones((num, 1))

    batches = [draw(64) for _ in range(20)]
    counted = training.histogram_accuracy(batches[:10], batches[10:], 4)
    assert counted > 0.95
    first = training.first_token_accuracy(batches[:10], batches[10:], 4)
    assert abs(first - 0.75) < 0.06
    # of 2 after 0, three times and once not: (3 + 1/2) / (4 + 3/2), and of nothing
    pairs = np.array([[0, 0, 0, 0]]), np.array([[2, 2, 2, 1]]), np.ones((1, 4))
    asked = np.array([[0, 1]]), np.array([[2, 2]]), np.array([[1.0, 1.0]])
    bits = training.pair_bits([pairs], [asked], 3)
    assert bits == pytest.approx((np.log2(5.5 / 3.5) + np.log2(3)) / 2)


@pytest.mark.slow
def test_the_command(few_held_out, tmp_path, monkeypatch, eagerly):
    task = dataclasses.replace(tasks.digits(8, 1, **SMALL), name="ListOps 512")
    monkeypatch.setattr(command, "further", lambda: [task])
    of = processes.results
    monkeypatch.setattr(processes, "results", lambda f, cases, workers: of(f, cases, 0))
    flags = ["--tasks", "ListOps 512", "--seeds", "0", "--output", str(tmp_path)]
    flags += ["--rows", models.FIRST, models.WITHOUT]
    command.main(flags)
    runs = [*map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())]
    assert [run["row"] for run in runs] == [models.FIRST, *2 * [models.WITHOUT]]
    assert [run["warm_up_steps"] for run in runs] == [0, 0, 2]
    # 8 images of ten classes
    assert all(8 * run["result"] == round(8 * run["result"]) for run in runs)
    large = {1024: {"tokens_a_second": 1, "bytes": costs.LARGEST / 15}}
    assert costs.measured(models.EXACT, 4096, large) is None


def a_run(row, result, seed=0, warm_up_steps=0, seconds=10.0, **more):
    counted = row == models.COUNTS
    curve = [[5, seconds / 2, 3.0, 0.1], [10, seconds, 2.0, result]]
    return {
        **{"task": "ListOps 512", "row": row, "seed": seed, "window": 32},
        **{"learning_rate": None if counted else 1e-3, "steps": 0 if counted else 10},
        **{"warm_up_steps": warm_up_steps, "measure": "accuracy", "result": result},
        **{"parameters": None if counted else 1234, "curve": [] if counted else curve},
        **{"machine": "a machine", "tensorflow": "2.x", "seconds_in_all": 1800.0},
        **more,
    }


def test_tables_by_hand(tmp_path):
    runs = [
        a_run(models.COUNTS, 0.15),
        a_run(models.EXACT, 0.40, seconds=40.0),
        a_run(models.EXACT, 0.44, seed=1, seconds=40.0),
        a_run("FNet", 0.30),
        a_run("FNet", 0.32, seed=1),
        a_run("FNet", 0.10, learning_rate=3e-3),
        a_run("FNet", 0.50, warm_up_steps=5),
    ]
    text = report.write(runs, tmp_path)
    assert "| FNet | 0.310 ± 0.014 | 0.500 |" in text
    assert f"| {models.COUNTS} | 0.150 (n = 1) | – |" in text
    # in the 10 s of FNet exact attention takes a quarter of its steps: before the first
    # measurement nothing is known; in the 40 s of exact attention all have ended
    assert "| after 10 s | after 40 s |" in text
    assert "0.400 / 0.440 | – | – | 0.420 | 4000 | 1,234 |" in text
    assert "| 0.310 | 0.300 / 0.320 | -0.110 ± 0.010 | 0.310 | 0.310 |" in text
    assert "7 runs, seeds 0, 1, on a machine, with TensorFlow 2.x; 3.5\nhours" in text
