"""The comparison with other libraries, without those that have to be installed."""

import importlib
import json
import re

import keras
import numpy as np
import pytest

from benchmarks import turns, workers
from benchmarks.peers import (
    __main__ as command,
)
from benchmarks.peers import (
    arrays,
    cases,
    environments,
    numbers,
    ours,
    tables,
    timed,
)
from keras_performer.zoo.big_bird import NONE

OF_KERAS = [c for c in cases.COMPARISONS if c["environment"] == "keras_own"]
HAS_WINDOW = hasattr(keras.layers.MultiHeadAttention, "_compute_sliding_window_mask")


class Here:
    """Stands for a pool: its programs run in this process."""

    def ask(self, environment, do, name, case):
        module = importlib.import_module(
            f"benchmarks.{environments.ENVIRONMENTS[environment][0]}"
        )
        for function in module.program(json.loads(json.dumps(case))):
            function()


@pytest.mark.skipif(not HAS_WINDOW, reason="This Keras has no sliding_window.")
@pytest.mark.parametrize("comparison", OF_KERAS[-3::2], ids=lambda c: c["name"])
def test_comparisons_with_keras_come_out_as_expected(comparison):
    row = numbers.compare(comparison, Here())
    assert numbers.is_expected(row)
    assert row["largest_output"] > 1
    if row["because"] is None:
        assert row["output"] < 1e-5 and row["gradient"] < 1e-5


def test_a_side_has_the_drawn_weights(tmp_path):
    case = json.loads(json.dumps(OF_KERAS[0]["ours"]))
    case["options"]["sliding_window"] = 1  # each token sees its own value alone
    case |= {name: str(tmp_path / f"{name}.npz") for name in ("inputs", "outputs")}
    drawn = arrays.drawn(case)
    np.savez(case["inputs"], **drawn)
    Here().ask("ours", "make", "numbers", case)
    found = np.load(case["outputs"])
    value = np.einsum("btd,dnh->btnh", drawn["x"], drawn["value/kernel"])
    value += drawn["value/bias"]
    output = np.einsum("btnh,nhd->btd", value, drawn["attention_output/kernel"])
    output += drawn["attention_output/bias"]
    np.testing.assert_allclose(found["output"], output, atol=1e-5)
    right = drawn["cotangent"].sum((0, 1))
    np.testing.assert_allclose(found["d attention_output/bias"], right, atol=1e-4)


@pytest.mark.skipif(not HAS_WINDOW, reason="This Keras has no sliding_window.")
def test_another_window_is_noticed():
    comparison = json.loads(json.dumps(OF_KERAS[0]))
    comparison["ours"]["options"]["sliding_window"] += 1
    row = numbers.compare(comparison, Here())
    assert row["expected"] == "agree"
    assert numbers.verdict(row) == "differ" and not numbers.is_expected(row)
    assert "**not as expected** differ" in tables.said(row)


def test_ours_are_layers_whose_weights_are_the_drawn_ones():
    made = {}
    for comparison in cases.COMPARISONS:
        case = comparison["ours"]
        if case["layer"] != "FourierMixing":
            made[json.dumps([case["layer"], case["options"]])] = case
    assert len(made) > 9
    for case in made.values():
        layer = ours.made(case)
        layer.build((None, None, case["sizes"]["width"]))
        shapes = {
            "/".join(weight.path.split("/")[-2:]): tuple(weight.shape)
            for weight in layer.trainable_weights
        }
        drawn = arrays.drawn(case)
        found = {name: drawn[name].shape for name in shapes}
        assert found == shapes
        assert set(drawn) - set(shapes) <= {
            *("x", "seen", "cotangent", "global", "projection")
        }
        if "projection" in drawn:
            assert layer.projection_matrix.shape == drawn["projection"].shape


def test_names_of_comparisons_say_which_it_is():
    names = [(row["pair"], row["name"]) for row in cases.COMPARISONS]
    assert len(set(names)) == len(names)
    used = {row["environment"] for row in cases.COMPARISONS} | {"ours"}
    assert used == set(environments.ENVIRONMENTS)


def test_hidden_tokens_are_left_out_of_the_cotangent():
    case = {**cases.COMPARISONS[0]["ours"], "padding": [3, 14], "length": 20}
    drawn = arrays.drawn(case)
    hidden = ~drawn["seen"]
    assert hidden.sum(1).tolist() == [3, 14] and hidden[:, -3:].all()
    assert np.all(drawn["cotangent"][hidden] == 0)
    assert np.all(drawn["cotangent"][~hidden] != 0)
    again = arrays.drawn(case)
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)


def test_differences_by_hand():
    seen = np.array([[True, False]])
    theirs = {"output": np.array([[[2.0, -4.0], [1.0, 1.0]]])}
    theirs |= {"d x": np.array([10.0, -20.0]), "d bias": np.array([1e-9])}
    ours = {"output": np.array([[[2.0, -3.5], [9.0, 9.0]]])}
    ours |= {"d x": np.array([11.0, -20.0]), "d bias": np.array([0.5])}
    # that of the bias is nothing beside that of x: measured against a tenth of it
    assert arrays.differences(ours, theirs, seen) == {
        "output": 0.5,
        "largest_output": 4.0,
        "gradient": pytest.approx(0.25),
        "worst_gradient": "d bias",
    }
    ours["d x"] = np.array([np.nan, -20.0])
    assert np.isnan(arrays.differences(ours, theirs, seen)["gradient"])
    with pytest.raises(ValueError, match="same gradients"):
        arrays.differences({**ours, "d more": 0}, theirs, seen)


# of blocks 1 to 4 of 6: fresh; own; one twice; the last and a neighbour
BLOCKS = np.array([[[3, 4], [2, 4], [1, 1], [5, 3]]])


def test_what_a_table_has_again():
    assert arrays.about(BLOCKS) == {"entries": 8, "again": 4, "largest": 5, "blocks": 6}


@pytest.mark.parametrize("each_once", [False, True])
def test_their_random_blocks_are_in_our_table(each_once):
    table, all_seeing = ours.seen_blocks(BLOCKS, each_once)
    assert set(all_seeing.numpy().tolist()) == {0, 5}
    rows = [sorted(row[row != NONE].tolist()) for row in table[0].numpy()]
    assert rows[1:5] == (
        [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 3, 4, 5]]
        if each_once
        else [
            [0, 1, 2, 3, 4, 5],
            [0, 1, 2, 2, 3, 4, 5],
            [0, 1, 1, 2, 3, 4, 5],
            [0, 3, 3, 4, 5, 5],
        ]
    )


ROW = {"pair": "Ours / theirs", "name": "plain", "environment": "keras_own"}
AGREES = {"output": 2e-6, "largest_output": 4.0, "gradient": 9e-6}
NAN = float("nan")


@pytest.mark.parametrize(
    ("found", "verdict", "expected"),
    [
        (AGREES, "agree", "agree"),
        ({**AGREES, "gradient": 1.1e-5}, "differ", "differ"),
        ({**AGREES, "gradient": NAN}, "differ", "differ"),
        ({**AGREES, "output": 5e-5}, "differ", "differ"),
        ({**AGREES, "output": NAN}, "differ", "differ"),
        ({"reason": "theirs: Error: no"}, "fails", "fails"),
        ({"reason": "ours: Error: no"}, "fails", None),
        ({"missing": "peer: not installed"}, "not run", None),
    ],
)
def test_what_came_out(found, verdict, expected):
    assert numbers.verdict({**ROW, **found}) == verdict
    for wanted in ("agree", "differ", "fails"):
        row = {**ROW, **found, "expected": wanted, "because": None}
        assert numbers.is_expected(row) == (wanted == expected)


class Gone:
    def ask(self, environment, **request):
        raise workers.Missing("keras_own: not installed")


def test_a_missing_library_is_a_row_that_says_so():
    row = numbers.compare(OF_KERAS[0], Gone())
    assert numbers.verdict(row) == "not run"
    assert tables.said(row) == "not run: keras_own: not installed"


PLAIN = {**ROW, **AGREES, "because": None, "expected": "agree"}
RESULTS = {
    "machine": {
        **{"cpu": "A processor", "threads": 2, "load_at_start": 0.04},
        "date": "2026-11-25T15:00:00+00:00",
    },
    "versions": {"ours": {"tensorflow": "2"}, "x": {"tensorflow": "2", "peer": "1"}},
}


def timed_row(side, seconds, length=1024, **other):
    case = {"pair": "Ours / Theirs", "side": side, "form": "causal", "options": {}}
    times = [9 * seconds, seconds, 0.9 * seconds] if seconds else []
    return {**case, "length": length, "times": times, "reason": None, **other}


def test_the_report_by_hand():
    about = arrays.about(BLOCKS)
    compared = {**RESULTS, "rows": [{**PLAIN, "random_blocks": about}]}
    rows = [
        *(timed_row("ours", 0.1), timed_row("theirs", 0.4)),
        timed_row("ours", 0.2, length=4096),
        timed_row("theirs", None, length=4096, reason="theirs: memory"),
    ]
    memory = [
        timed_row("ours", None, peak_bytes=30 * 2**20),
        timed_row("theirs", None, peak_bytes=120 * 2**20),
    ]
    text = tables.report(compared, {**RESULTS, "rows": rows, "memory": memory})
    for line in (
        "A processor, 2 threads, 2026-11-25, load at the start 0.0; peer 1, tensorflow "
        "2.",
        "| plain | 2.0e-06 of 4.0 | 9.0e-06 | agree |",
        "| plain | 8 | 4 | 5 | 6 |",
        "| Ours / Theirs | causal | 1,024 | 100 | 400 | 0.25 | 30 | 120 | 0.25 |",
        "| Ours / Theirs | causal | 4,096 | 200 | theirs: memory | – | – | – | – |",
    ):
        assert line in text.splitlines(), line
    assert "Not measured yet" not in text
    assert "Not measured yet" in tables.report(compared, None)
    assert "Numbers" not in tables.report(None, {**RESULTS, "rows": [], "memory": []})


def test_both_sides_of_a_timed_pair_have_one_size_and_form():
    groups = list(timed.groups([4096, 1024]))
    assert [group[0]["length"] for group in groups] == sorted(
        group[0]["length"] for group in groups
    )
    for ours_case, theirs in groups:
        assert (ours_case["side"], theirs["side"]) == ("ours", "theirs")
        for key in ("pair", "form", "length", "sizes", "step", "mode"):
            assert ours_case[key] == theirs[key]
        if ours_case["layer"] != "FourierMixing":
            layer = ours.made(ours_case)
            assert layer.causal == (ours_case["form"] == "causal")
            assert type(layer).__name__ == ours_case["layer"]
        causal = (
            theirs["options"].get("causal")
            or "causal_chunk_length" in (theirs["options"])
        )
        assert bool(causal) == (ours_case["form"] == "causal")


def test_the_command_writes_what_was_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.measure, "install_missing", lambda known: {})
    monkeypatch.setattr(cases, "COMPARISONS", OF_KERAS[:1])
    compared = {**PLAIN, "output": 1.0, "pair": OF_KERAS[0]["pair"]}
    monkeypatch.setattr(numbers, "compare", lambda comparison, pool: compared)
    asked = []

    def take_turns(rows, pool, rounds, limit):
        asked.append((len(rows), rounds))
        for row in rows:
            row.update(times=[0.5] * rounds, peak_bytes=2**20)

    monkeypatch.setattr(turns, "take_turns", take_turns)
    arguments = ["--output", str(tmp_path), "--lengths", "1024", "--rounds", "3"]
    assert command.main([*arguments, "--only", "times"]) == 0
    number = len(list(timed.groups([1024])))
    assert asked == [(2, 3)] * number + [(1, 0)] * 2 * number
    assert not (tmp_path / "numbers.json").exists()
    assert command.main([*arguments, "--only", "numbers"]) == 1  # not as expected
    text = (tmp_path / "tables.md").read_text()
    assert "| 500 | 500 | 1.00 | 1 | 1 | 1.00 |" in text  # the times are still there
    assert "**not as expected** differ" in text
    assert re.search(
        r"LocalAttention / Keras \w+, plain: \*\*not", capsys.readouterr()[0]
    )
