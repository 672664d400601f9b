"""Models of equal size, what reads them, and what the command does with them."""

import dataclasses
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.learning import pool
from benchmarks.learning import times as times_of_steps
from benchmarks.long_range import __main__ as command
from benchmarks.long_range import (
    baselines,
    costs,
    models,
    plan,
    report,
    rows,
    tables,
    tasks,
    times,
    training,
)
from keras_performer.layers import AttentionLayer, MixingLayer

SMALL = dict(steps=2, warm_up_steps=2, batch_size=4, hidden_dim=32, learning_rate=1e-3)
HELD_OUT = 8


@pytest.fixture
def few_held_out(monkeypatch):
    monkeypatch.setattr(tasks, "HELD_OUT", HELD_OUT)
    monkeypatch.setattr(tasks, "TOKENS_AT_ONCE", 256)
    monkeypatch.setattr(training, "NUM_COUNTED", 50)


def options(*flags):
    return command.make_parser().parse_args(flags)


def made(row, causal=False):
    return rows.attention(row, 64, 4, 2, 16, causal)


def test_the_next_byte_is_learned_with_rotated_queries_and_keys():
    small = dict(steps=2, batch_size=4, learning_rate=1e-3)
    task = tasks.sources(64, **small)
    for row in (rows.EXACT, rows.PERFORMER, "Synthesizer"):
        model = models.make_encoder(task, row, seed=0)
        rotates = row != "Synthesizer"  # which has none
        assert [block.attention.rotary for block in model.blocks] == [
            rotates or None
        ] * len(model.blocks)
        assert model.position_embedding == ("rotary" if rotates else "learned")
    digits = tasks.digits(12, 1, **small, hidden_dim=32)
    (first, *_) = models.make_encoder(digits, rows.EXACT, seed=0).blocks
    assert first.attention.rotary is None


def test_every_row_has_an_attention_of_its_own():
    kinds = {}
    for row in rows.ROWS:
        if row not in (*rows.NO_MODELS, rows.WITHOUT):
            layer = made(row)
            assert isinstance(layer, (AttentionLayer, MixingLayer))
            config = layer.get_config()
            config.pop("name")
            kinds[row] = type(layer).__name__, json.dumps(config, default=str)
    assert len(set(kinds.values())) == len(rows.ROWS) - 3
    assert made(rows.WITHOUT) == "none"
    assert made(rows.GAINS).initial_log_gain == (-4, 2)
    assert rows.alternating(5) == [-4, 2, -4, 2, -4]
    assert made(rows.PERFORMER).exact_window == made(rows.WINDOW).sliding_window == 4
    assert made("Performer").num_random_features == 64
    assert made(rows.TWO_FEATURES).num_random_features == 2


def test_what_cannot_be_causal_is_left_out_of_causal_tasks():
    for row in {*rows.ROWS} - {*rows.NO_MODELS, rows.WITHOUT}:
        if row in rows.NOT_CAUSAL:
            with pytest.raises(ValueError, match="causal"):
                made(row, causal=True)
        else:
            assert made(row, causal=True).causal
    asked = "--tasks", "proteins 1,024", "--rows", *rows.ROWS
    runs = plan.plan(options(*asked))
    other = {*rows.NOT_CAUSAL, rows.TWO_FEATURES}
    assert {run["row"] for run in runs} == {*rows.ROWS} - other
    assert not any(run["warm_up_steps"] for run in runs)
    assert plan.needs_proteins(runs) and not plan.needs_proteins(plan.plan(options()))


@pytest.mark.slow
def test_models_are_of_one_size():
    task = tasks.list_operations(128, **{**SMALL, "hidden_dim": 64})
    sizes = {}
    for row in {*rows.ROWS} - {*rows.NO_MODELS}:
        encoder = models.make_encoder(task, row, seed=0)
        sizes[row] = models.count_parameters(encoder)
    assert {
        row for row in sizes if abs(sizes[row] / sizes[rows.EXACT] - 1) > 0.01
    } == set()


def classifier(padded=True, pairs=False):
    task = tasks.list_operations(16, **SMALL)
    encoder = models.make_encoder(task, rows.EXACT, seed=0)
    return models.Classifier(encoder, padded, 10, pairs)


def test_padding_is_not_seen():
    model = classifier()
    short = np.array([[5, 1, 2, 3, 15]])
    long = np.pad(short, ((0, 0), (0, 6)))
    np.testing.assert_allclose(model(short), model(long), atol=1e-5)
    # where 0 is a token, it counts
    unpadded = models.Classifier(model.encoder, False, 10)
    unpadded.logits.set_weights(model.logits.get_weights())
    np.testing.assert_allclose(unpadded(short), model(short), atol=1e-5)
    assert np.abs(unpadded(long) - unpadded(short)).max() > 1e-3


def test_pairs_are_read_together():
    model = classifier(pairs=True)
    random = np.random.default_rng(0)
    inputs = random.integers(1, 10, size=(6, 16))
    scale, shift, mean, variance = random.uniform(1, 2, size=(4, 32))
    model.norm.set_weights([scale, shift, mean, variance])
    hidden = model.encoder(inputs).numpy().mean(1)
    hidden = (hidden - mean) / np.sqrt(variance + model.norm.epsilon) * scale + shift
    kernel, bias = model.logits.get_weights()
    for i in range(3):
        u, v = hidden[i], hidden[3 + i]
        wanted = np.concatenate([u, v, u - v, u * v]) @ kernel + bias
        np.testing.assert_allclose(model(inputs)[i, 0], wanted, atol=1e-5)


def test_some_tokens_are_hidden_and_asked_for():
    task = tasks.list_operations(128, **SMALL)
    random = np.random.default_rng(3)
    inputs, targets, weights = training.draw_hidden(task, random, 64)
    asked = weights > 0
    assert (inputs[asked] == task.vocabulary_size).all()
    np.testing.assert_array_equal(inputs[~asked], targets[~asked])
    assert (targets[asked] != models.PADDING).all()
    share = asked.sum() / (targets != models.PADDING).sum()
    assert abs(share - training.HIDDEN_PART) < 0.02
    # the token that says so is one more than the task has, which models know
    encoder = models.make_encoder(task, rows.WITHOUT, seed=0)
    assert encoder.vocabulary_size == task.vocabulary_size + 1


@pytest.mark.slow
def test_a_warm_up_trains_the_model_that_is_trained_then(few_held_out, monkeypatch):
    task = tasks.digits(8, 1, **SMALL)
    kept = []
    learn = training.learn

    def watched(model, task, *given, **options):
        before = model.encoder.get_weights()
        curve = learn(model, task, *given, **options)
        kept.append((type(model), task.measure, before, model.encoder.get_weights()))
        return curve

    monkeypatch.setattr(training, "learn", watched)
    run = training.train(task, rows.WITHOUT, 0, 1e-3, 2, 2, 1)
    (reader, bits, _, warmed), (_, accuracy, started, trained) = kept
    assert reader is models.TokenReader and (bits, accuracy) == ("bits", "accuracy")
    for a, b in zip(warmed, started, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(started, trained))
    # nothing is learned of 17 tokens in two steps: about log2(17) bits
    assert 2 < run["warm_up_bits"] < 8 and run["warm_up_steps"] == 2
    assert [point[0] for point in run["curve"]] == [2]
    cold = training.train(task, rows.WITHOUT, 0, 1e-3, 2, 0, 1)
    assert "warm_up_bits" not in cold and len(kept) == 3


@pytest.mark.slow
def test_residues_are_told_from_those_before(few_held_out, monkeypatch):
    """The next token of a line that repeats is told by a causal model."""

    def repeating(length, random, batch_size):
        start = random.integers(4, size=(batch_size, 1))
        tokens = ((start + np.arange(length + 1)) % 4).astype(np.int32)
        return tokens[:, :-1], tokens[:, 1:], np.ones((batch_size, length), np.float32)

    task = dataclasses.replace(
        tasks.residues(32, **SMALL),
        draw=lambda random, size: repeating(32, random, size),
        held_out=lambda: [repeating(32, np.random.default_rng(9), 8)],
    )
    run = training.train(task, rows.PERFORMER, 0, 3e-2, 60, 0, 1)
    assert run["measure"] == "bits" and run["result"] < 0.7
    counted = training.train(task, rows.COUNTS, 0, None, 0, 0, 1)
    assert counted["result"] < 0.05 and counted["curve"] == []


@pytest.mark.parametrize(
    "row, accuracy",
    [
        (rows.COUNTS, baselines.histogram_accuracy),
        (rows.FIRST, baselines.first_token_accuracy),
    ],
)
def test_what_is_counted_is_of_the_task(few_held_out, row, accuracy):
    task = tasks.digits(8, 1, **SMALL)
    run = training.train(task, row, 1, None, 0, 0, 1)
    wanted = accuracy(task.draw, task.held_out(), 50, task.vocabulary_size, seed=1)
    assert run["result"] == round(wanted, 4)


# What counts without a model: classes, bits of the next token, and of nothing else.
NOT_TRAINED = {
    "recall 512": set(),
    "digits 144": {rows.COUNTS, rows.FIRST},
    "bytes 512": {rows.COUNTS},
}


def test_the_core_has_its_controls_and_seeds():
    runs = plan.plan(options())
    assert len({plan.name_of(run) for run in runs}) == len(runs)
    for task in plan.core():
        of_task = [run for run in runs if run["task"].name == task.name]
        for warm_up in (0, task.warm_up_steps):
            same = [run for run in of_task if run["warm_up_steps"] == warm_up]
            there = {(run["row"], run["seed"]) for run in same if run["steps"]}
            trained = {row for row in rows.CORE if row not in rows.NO_MODELS}
            seeds = (0,) if warm_up else (0, 1, 2)
            assert there == {(row, seed) for row in trained for seed in seeds}
        counted = {run["row"] for run in of_task if run["learning_rate"] is None}
        assert counted == NOT_TRAINED[task.name]
    assert {rows.WITHOUT, rows.EXACT, rows.WINDOW} < {*rows.CORE}
    asked = plan.plan(options("--warm-up", "with"))
    assert {run["seed"] for run in asked} == {0, 1, 2}


def test_the_whole_has_every_row_with_three_seeds_and_three_rates():
    runs = plan.plan(options("--full"))
    names = {plan.name_of(run) for run in runs}
    assert len(names) == len(runs)
    assert names >= {*map(plan.name_of, plan.plan(options()))}
    assert {run["task"].name for run in runs} == {*plan.task_names()}
    task = plan.core()[1]

    def made(task, row):
        same = [r for r in runs if r["task"].name == task.name and r["row"] == row]
        rate, steps = task.learning_rate, task.warm_up_steps
        return {
            (r["seed"], round(r["learning_rate"] / rate, 3), r["warm_up_steps"] / steps)
            for r in same
        }

    several = {(seed, 1, warm_up) for seed in range(3) for warm_up in (0, 1)}
    several |= {(0, 0.333, 0), (0, 3, 0)}
    assert made(task, rows.EXACT) == made(task, rows.TAYLOR) == several
    better = {(seed, 0.333, 0) for seed in range(3)}
    assert made(task, rows.WINDOW) == several | better
    first = {pair for pair in several if pair[0] == 0}
    assert made(task, "FNet") == first | {(1, 1, 0), (2, 1, 0)}
    assert made(plan.further()[0], rows.EXACT) == {(0, 1, 0), (0, 1, 1)}
    assert rows.TWO_FEATURES in {run["row"] for run in runs}
    large = plan.plan(options("--published"))
    trained = {
        *[(2000, 32, 5000), (4000, 32, 20_000), (4000, 32, 5000), (8192, 32, 5000)],
        *[(1024, 256, 35_000), (1024, 512, 62_400)],
    }
    counted = {(length, batch_size, 0) for length, batch_size, _ in trained}
    sizes = {(r["task"].length, r["task"].batch_size, r["steps"]) for r in large}
    assert sizes == trained | counted
    tried = {r["learning_rate"] for r in large if r["row"] == "FNet" and not r["seed"]}
    np.testing.assert_allclose(sorted(tried), [1e-3 / 3, 1e-3, 3e-3])


def test_quick_is_a_part_of_the_steps():
    runs = plan.plan(options("--quick", "--tasks", "ListOps 512"))
    full = {run["steps"] for run in plan.plan(options("--tasks", "ListOps 512"))}
    assert {20 * run["steps"] for run in runs} == full and {
        r["seed"] for r in runs
    } == {0}


def test_tasks_travel_to_workers(monkeypatch):
    monkeypatch.setattr(tasks, "HELD_OUT", 2)
    for task in plan.core():
        copy = pickle.loads(pickle.dumps(task))
        batches = [t.draw(np.random.default_rng(5), 2) for t in (task, copy)]
        for a, b in zip(*batches, strict=True):
            np.testing.assert_array_equal(a, b)
        assert batches[0][0].shape == (2, task.length)
        assert batches[0][0].max() < task.vocabulary_size
        kinds = task.num_classes or task.vocabulary_size
        assert 0 <= batches[0][1].min() and batches[0][1].max() < kinds


def a_run(row, result, seed=0, warm_up_steps=0, seconds=10.0, **more):
    counted = row == rows.COUNTS
    curve = [[5, seconds / 2, 3.0, 0.1], [10, seconds, 2.0, result]]
    return {
        "task": "ListOps 512",
        "row": row,
        "seed": seed,
        "learning_rate": None if counted else 1e-3,
        "steps": 0 if counted else 10,
        "warm_up_steps": warm_up_steps,
        "measure": "accuracy",
        "window": 32,
        "parameters": None if counted else 1234,
        "result": result,
        "seconds": seconds,
        "machine": "a machine",
        "tensorflow": "2.x",
        "curve": [] if counted else curve,
        "seconds_in_all": 1800.0,
        **more,
    }


RUNS = [
    a_run(rows.COUNTS, 0.15),
    a_run(rows.EXACT, 0.40, seconds=40.0),
    a_run(rows.EXACT, 0.44, seed=1, seconds=40.0),
    a_run("FNet", 0.30, seconds=10.0),
    a_run("FNet", 0.32, seed=1, seconds=10.0),
    a_run("FNet", 0.10, learning_rate=3e-3),
    a_run("FNet", 0.50, warm_up_steps=5),
]


def test_tables_have_means_spread_and_equal_time():
    text = tables.summary(RUNS)
    assert "| ListOps 512 | ListOps 512, warmed up |" in text
    assert "| FNet | 0.310 ± 0.014 | 0.500 |" in text
    assert f"| {rows.COUNTS} | 0.150 (n = 1) | – |" in text
    alone = tables.task_table(RUNS[:6])
    # in the 10 s of FNet exact attention takes a quarter of its steps: before the first
    # measurement nothing is known; in the 40 s of exact attention all have ended
    assert "| after 10 s | after 40 s |" in alone
    (exact,) = [line for line in alone.splitlines() if line.startswith("| exact")]
    assert "0.400 / 0.440 | – | – | 0.420 | 4000 | 1,234 |" in exact
    best = [line for line in alone.splitlines() if line.startswith("| FNet | 0.001")]
    assert "| 0.310 | 0.300 / 0.320 | -0.110 ± 0.010 | 0.310 | 0.310 |" in best[0]


def test_times_of_one_machine_stand_for_those_of_the_runs(tmp_path, monkeypatch):
    asked = []

    def timed(task, row):
        asked.append((task.name, row))
        return task.name, row, 0.5 if row == "window" else 0.25

    # in this process
    results = pool.results
    monkeypatch.setattr(times, "timed", timed)
    monkeypatch.setattr(
        pool, "results", lambda time, cases, workers: results(time, cases, 0)
    )
    chosen = "--times --tasks".split() + ["digits 144", "--rows"]
    command.main([*chosen, rows.COUNTS, "window", "FNet", "--output", str(tmp_path)])
    assert asked == [("digits 144", "window"), ("digits 144", "FNet")]  # once a task
    runs = [a_run(row, 0.4, task="digits 144") for row in ("window", "FNet", "exact")]
    timed, faster, other = times_of_steps.retold(runs, tmp_path)
    assert timed["curve"] == [[5, 2.5, 3.0, 0.1], [10, 5.0, 2.0, 0.4]]
    assert faster["curve"][1] == [10, 2.5, 2.0, 0.4]
    assert other == runs[2]  # not timed
    text = report.write(runs, tmp_path)
    assert "| window | 0.001 | 0.400 | 0.400 | +0.000 | 0.100 | 0.400 | 500 |" in text
    assert "| FNet | 0.001 | 0.400 | 0.400 | +0.000 | 0.400 | 0.400 | 250 |" in text
    assert "medians of 15 steps, on one thread of" in text
    monkeypatch.setattr(times_of_steps.machine, "name", lambda: "another")
    with pytest.raises(ValueError, match="this is another: they cannot be compared"):
        command.main([*chosen, "window", "--output", str(tmp_path)])


@pytest.mark.slow
def test_a_step_is_timed():
    (task,) = [x for x in plan.core() if x.name == "digits 144"]
    few = dataclasses.replace(task, batch_size=2)
    name, row, seconds = times.timed(few, rows.WITHOUT)
    assert (name, row) == ("digits 144", rows.WITHOUT) and seconds > 0


def test_costs_are_by_length():
    found = {
        "exact": {"1024": {"tokens_a_second": 5000, "bytes": 2**29}, "4096": None},
        "window": {
            "1024": {"tokens_a_second": 6000, "bytes": 2**28},
            "4096": {"tokens_a_second": 6100, "bytes": 2**28},
            "machine": "a machine",
        },
    }
    lines = tables.costs_table(found).splitlines()
    assert lines[0] == (
        "| attention | 1,024 tokens | 4,096 tokens | 1,024: MiB | 4,096: MiB |"
    )
    assert lines[2] == "| exact | 5,000 | – | 512 | – |"
    assert lines[3] == "| window | 6,000 | 6,100 | 256 | 256 |"


@pytest.mark.slow
def test_costs_are_of_a_step(monkeypatch):
    """In this process, whose memory is measured as that of a new one would be."""
    monkeypatch.setattr(
        costs.alone, "call", lambda function, *given, initializer: function(*given)
    )
    monkeypatch.setattr(pool, "results", lambda time, cases, workers: [0.25])
    found = costs.measured(rows.WITHOUT, 1024, {})
    assert found["tokens_a_second"] == 1024 / 0.25
    assert isinstance(found["bytes"], int)
    assert costs.seconds_of_step(rows.WITHOUT, 1024) > 0


@pytest.mark.parametrize("row", ["exact", "no attention", "MLP-Mixer", "gMLP"])
def test_costs_are_of_equal_feed_forward_networks(row):
    same = costs.task(4096)
    (units,) = {
        block.intermediate_dim for block in costs.made(same, row).encoder.blocks
    }
    assert units == 256


def test_costs_are_of_all_that_trains(tmp_path, monkeypatch):
    cost = {"tokens_a_second": 1, "bytes": 2}
    monkeypatch.setattr(costs, "measured", lambda *of_row: cost)
    command.main(["--costs", "--output", str(tmp_path)])
    found = json.loads((tmp_path / "costs.json").read_text())
    assert {*found} == {*rows.ROWS} - {*rows.NO_MODELS}
    assert found["FNet"]["4096"] == cost


def test_what_would_need_too_much_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(costs.alone, "call", None)  # would fail
    shorter = {1024: {"tokens_a_second": 1, "bytes": costs.LARGEST / 15}}
    assert costs.measured(rows.EXACT, 4096, shorter) is None
    assert costs.measured(rows.EXACT, 16384, {**shorter, 4096: None}) is None


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    calls = []

    def train(task, row, seed, learning_rate, steps, warm_up_steps, evaluations):
        calls.append((row, seed))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return a_run(
            row,
            0.25,
            seed,
            warm_up_steps,
            task=task.name,
            learning_rate=learning_rate,
            steps=steps,
        )

    monkeypatch.setattr(training, "train", train)
    chosen = "--tasks", "ListOps 512", "--rows", "FNet", "gMLP", "--seeds", "0"
    flags = [
        *chosen,
        "--warm-up",
        "without",
        "--output",
        str(tmp_path),
        "--workers",
        "0",
    ]
    with pytest.raises(KeyboardInterrupt):
        command.main(flags)
    command.main(flags)
    assert calls == [("FNet", 0), ("gMLP", 0), ("gMLP", 0)]
    text = (tmp_path / "tables.md").read_text()
    assert "| FNet | 0.250 |" in text and "| gMLP | 0.250 |" in text
    capsys.readouterr()
    command.main([*flags, "--report-only"])
    assert len(calls) == 3 and "| gMLP | 0.250 |" in capsys.readouterr().out


def test_a_page_says_how_its_figures_came_about(tmp_path):
    text = report.write(RUNS, tmp_path)
    assert "7 runs, seeds 0, 1, on a machine, with TensorFlow 2.x; 3.5\nhours" in text
    assert "10 steps, window 32, after 5 steps of restoring hidden tokens." in text
    assert report.write([], tmp_path).endswith("No runs.")


def test_graphs_see_the_mask():
    """As in training: the encoder is called in a graph, where masks are tensors."""
    model = classifier()
    inputs = np.array([[5, 1, 2, 3, 15, 0, 0], [4, 2, 15, 0, 0, 0, 0]])
    graph = tf.function(lambda x: model(x, training=True), autograph=False)
    np.testing.assert_allclose(graph(inputs), model(inputs, training=True), atol=1e-5)
    keras.utils.clear_session()
