"""The comparison with other libraries, without those that have to be installed."""

import importlib
import json

import keras
import numpy as np
import pytest

from benchmarks import turns
from benchmarks.contenders import ours
from benchmarks.peers import cases, numbers, tables
from keras_performer.zoo.big_bird import NONE

OF_KERAS = [c for c in cases.COMPARISONS if c["environment"] == "ours"]
HAS_WINDOW = hasattr(keras.layers.MultiHeadAttention, "_compute_sliding_window_mask")


class Here:
    """Stands for a pool: its programs run in this process."""

    def ask(self, environment, do, name, case):
        module = importlib.import_module(
            f"benchmarks.{turns.ENVIRONMENTS[environment][0]}"
        )
        for function in module.program(json.loads(json.dumps(case))):
            function()


@pytest.mark.skipif(not HAS_WINDOW, reason="This Keras has no sliding_window.")
@pytest.mark.parametrize("comparison", OF_KERAS[-3:-2], ids=lambda c: c["name"])
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
    drawn = numbers.drawn(case)
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


def test_hidden_tokens_are_left_out_of_the_cotangent():
    case = {**cases.COMPARISONS[0]["ours"], "padding": [3, 14], "length": 20}
    drawn = numbers.drawn(case)
    hidden = ~drawn["seen"]
    assert hidden.sum(1).tolist() == [3, 14] and hidden[:, -3:].all()
    assert np.all(drawn["cotangent"][hidden] == 0)
    assert np.all(drawn["cotangent"][~hidden] != 0)
    again = numbers.drawn(case)
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)


def test_differences_by_hand():
    seen = np.array([[True, False]])
    theirs = {"output": np.array([[[2.0, -4.0], [1.0, 1.0]]])}
    theirs |= {"d x": np.array([10.0, -20.0]), "d bias": np.array([1e-9])}
    ours = {"output": np.array([[[2.0, -3.5], [9.0, 9.0]]])}
    ours |= {"d x": np.array([11.0, -20.0]), "d bias": np.array([0.5])}
    # that of the bias is nothing beside that of x: measured against a tenth of it
    assert numbers.differences(ours, theirs, seen) == {
        "output": 0.5,
        "largest_output": 4.0,
        "gradient": pytest.approx(0.25),
        "worst_gradient": "d bias",
    }
    ours["d x"] = np.array([np.nan, -20.0])
    assert np.isnan(numbers.differences(ours, theirs, seen)["gradient"])
    with pytest.raises(ValueError, match="same gradients"):
        numbers.differences({**ours, "d more": 0}, theirs, seen)


# of blocks 1 to 4 of 6: fresh; own; one twice; the last and a neighbour
BLOCKS = np.array([[[3, 4], [2, 4], [1, 1], [5, 3]]])


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


class Gone:
    def ask(self, environment, **request):
        raise turns.Missing("hub: not installed")


def test_what_came_out():
    row = numbers.compare(OF_KERAS[0], Gone())
    assert numbers.verdict(row) == "not run"
    assert tables.said(row) == "not run: hub: not installed"
    close = {"output": 2e-6, "largest_output": 4.0, "gradient": 9e-6}
    for found, verdict in (
        (close, "agree"),
        ({**close, "gradient": 1.1e-5}, "differ"),
        ({**close, "gradient": float("nan")}, "differ"),
        ({**close, "output": 5e-5}, "differ"),
        ({"reason": "theirs: Error: no"}, "fails"),
    ):
        assert numbers.verdict(found) == verdict
        for wanted in ("agree", "differ", "fails"):
            row = {**found, "expected": wanted, "because": None}
            assert numbers.is_expected(row) == (wanted == verdict)
    failed = {"reason": "ours: Error: no", "expected": "fails", "because": None}
    assert not numbers.is_expected(failed)
