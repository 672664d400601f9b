"""The short scripts, each at a tiny size."""

import json

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import (
    decoding,
    generation,
    input_pipeline,
    machine,
    options,
    turns,
)
from benchmarks.contenders import ours
from benchmarks.tpu.table import CONFIGS
from examples.imagenet64.config import Config

SET_THREADS = "set_intra_op_parallelism_threads"  # which a process can do once


def of_half_a_second(rows, pool, rounds, limit):
    for row in rows:
        row.update(times=[] if row["reason"] else [9, 0.5, 0.4])


def test_decoding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(turns, "take_turns", of_half_a_second)
    decoding.main(["--output", str(tmp_path), "--batches", "1", "64"])
    rows = json.loads((tmp_path / "decoding.json").read_text())["rows"]
    # 3 in graphs and 2 by XLA, at two positions
    assert len(rows) == 2 * 2 * (3 + 2)
    assert all(row["times"] == [9, 0.5, 0.4] for row in rows)
    # 64 steps of 64 sequences in half a second
    line = "| exact, key-value cache | xla | 64 | 12000 | 8192 | 7.812 | 1.00 | 1.0 |"
    assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize("contender", ["softmax", "key-value cache"])
def test_modes_decode_the_same(contender):
    case = {"contender": contender, "part": "decoding", "position": 5, "batch": 2}
    by_graph, by_xla = (
        ours.program({**case, "tokens": 3, "mode": mode})[1]()
        for mode in ("graph", "xla")
    )
    np.testing.assert_allclose(by_graph, by_xla, atol=1e-5)
    assert np.abs(by_graph).max() > 0.01


@pytest.mark.parametrize("xla", [False, True])
def test_the_cache_is_seen_up_to_the_token(xla):
    decode_token, state = ours.cached(5, length=8, batch=2, xla=xla)
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


def test_generation(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "take_turns", of_half_a_second)
    monkeypatch.setattr(turns, "install", lambda environment: None)
    # 3 matrices of 64 x 4 heads of 4,096 x 4,096 float32
    monkeypatch.setattr(machine, "free_bytes", lambda: 3 * 2**34)
    flags = "--prompts 4000 --batches 8 64 --new-tokens 96 --output"
    generation.main([*flags.split(), str(tmp_path)])
    lines = (tmp_path / "tables.md").read_text().splitlines()
    assert "| 4,000 | 96 | 8 | 1536.0 | 1536.0 | 1536.0 | 1.00 |" in lines
    assert lines[-1].startswith("| 4,000 | 96 | 64 | 12288.0 | needs 52 GB, more")
    sizes = dict(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=8)
    case = dict(part="generate", prompt_length=3, new_tokens=4, batch=2, sizes=sizes)
    ours.program(case)[1]()  # which looks at the shape of what it makes


def test_options(capsys, monkeypatch):
    flags = "--lengths 128 --pairs 3 --modes graph --no-memory --only"
    monkeypatch.setattr(options.tf.config.threading, SET_THREADS, lambda number: None)
    name = "segments of 512 and a window, causal"
    options.main([*flags.split(), name])
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("| s"))
    found, *_, ratio, quartiles = line.split(" | ")[:5]
    assert found == f"| {name}"
    low, high = map(float, quartiles.split("-"))
    assert 0 < low <= float(ratio) <= high


def test_input_pipeline(capsys, monkeypatch):
    # by hand: 6 layers of 4 projections and a feed-forward network, and the head
    weights = 6 * (4 * 512 * 512 + 2 * 512 * 2048) + 512 * 256
    paper = Config.from_preset("paper")
    assert input_pipeline.flops_per_image(paper) == 6 * 12288 * weights
    files = {path.stem for path in CONFIGS.glob("*.yaml")}
    assert set(input_pipeline.CHIPS) == files - {"cpu"}
    monkeypatch.setattr(input_pipeline, "images_used", lambda name: 100.0)
    flags = "--number 64 --shards 2 --batch-size 8 --seconds 0.2 --repeats 1"
    input_pipeline.main(flags.split())
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("|")]
    speed = {row[1].strip(): row[2].strip().replace(",", "") for row in rows}
    # a busy machine still reads some a second
    assert all(float(speed[hosts]) > 1 for hosts in "124")
    assert "v4-32" in speed and "64 images" in printed
