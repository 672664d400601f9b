"""The decoding benchmark: its file, and the programs that it measures."""

import json

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import decoding, turns
from benchmarks.contenders import decoding_layers


def test_a_run_that_is_stopped_keeps_what_it_has(tmp_path, monkeypatch):
    def take_turns(rows, pool, rounds, limit):
        if rows[0]["batch"] == 64:
            raise KeyboardInterrupt
        for row in rows:
            row["times"].append(0.5)

    monkeypatch.setattr(turns, "take_turns", take_turns)
    with pytest.raises(KeyboardInterrupt):
        decoding.main(["--output", str(tmp_path)])
    rows = json.loads((tmp_path / "decoding.json").read_text())["rows"]
    assert {row["batch"] for row in rows} == {1, 8}
    assert all(row["times"] == [0.5] for row in rows)


def last_token(contender, mode, batch=2):
    case = {"contender": contender, "mode": mode, "position": 5, "batch": batch}
    _, run = decoding_layers.program({**case, "tokens": 3})
    return run()


@pytest.mark.parametrize("contender", ["softmax", "key-value cache"])
def test_modes_decode_the_same(contender):
    by_graph, by_xla = (last_token(contender, mode) for mode in ("graph", "xla"))
    np.testing.assert_allclose(by_graph, by_xla, atol=1e-5)
    assert np.abs(by_graph).max() > 0.01


@pytest.mark.parametrize("xla", [False, True])
def test_the_cache_is_seen_up_to_the_token(xla):
    decode_token, state = decoding_layers.cached(5, length=8, batch=2, xla=xla)
    token = tf.random.stateless_normal((2, 1, 512), seed=(0, 1))

    def decoded(*changed):
        """With other numbers in these rows of each head's cache."""
        rows = np.isin(np.arange(8), changed)[:, np.newaxis]
        caches = [np.reshape(x, (-1, 8, 64)) for x in state]
        caches = [np.where(rows, x + 3, x).reshape(-1, 64) for x in caches]
        step = tf.function(lambda *caches: decode_token(1, token, caches)[0])
        return step(*map(tf.constant, caches))

    # the token is the seventh, and writes its own row
    np.testing.assert_array_equal(decoded(), decoded(6, 7))
    for row in range(6):
        assert np.abs(decoded() - decoded(row)).max() > 0.01
