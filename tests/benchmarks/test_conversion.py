"""Trained models are read as in their files, and evaluated as documented."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.conversion import __main__ as command
from benchmarks.conversion import small
from benchmarks.conversion.sources import Pretrained

MASK = 4


class Constant:
    """Model that gives all tokens the same logits."""

    layers = ()

    def __init__(self, logits):
        self.logits = np.array(logits, np.float32)

    def __call__(self, tokens, training):
        assert training is False
        return tf.constant(np.tile(self.logits, (*tokens.shape, 1)))


def long_sequences():
    """Returns two similar sequences and a different one."""
    random = np.random.default_rng(0)
    first, other = random.integers(5, 25, (2, 61)).tolist()
    return [first, first[:30] + first[32:], other]


def made_up(sequences):
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Pretrained("tiny 1.0", config, {}, {}, sequences, MASK)


def test_the_command(tmp_path, monkeypatch):
    made = made_up(long_sequences())
    monkeypatch.setitem(command.SOURCES, "antiberty", lambda folder: made)
    monkeypatch.setattr(Pretrained, "model", lambda source: Constant(np.zeros(25)))
    flags = ["--models", "antiberty", "--workers", "0"]
    flags += ["--output", str(tmp_path), "--rows", "mean of V"]
    command.main(flags)
    text = (tmp_path / "tables.md").read_text()
    # 25 tokens are equally likely
    assert f"| exact | {math.log(25):.3f} | +0.000 | 0.000 |" in text
    assert "| mean of V | 3.219 | +0.000 |" in text and "| window alone" not in text
    assert "175 masked tokens of 3 sequences of 59 to 61 tokens" in text
    # a model that was read wrongly ends the command
    made = dataclasses.replace(made, exact_nll=3.217)
    with pytest.raises(ValueError, match="weights or tokens were read wrongly"):
        command.main(flags)


def test_the_page_of_a_small_model_pairs_what_is_lost(tmp_path):
    exact = small.Result("exact", 1.0, [1.0, 2.0, 3.0])
    other = small.Result("other", 0.5, [1.5, 2.1, 3.9], seconds=7.0, steps=200)
    kept = {"controls": [exact, other], "softmax": [other]}
    runs = [
        {"task": "recall", "row": row, "steps": 200, "found": found}
        for row, found in kept.items()
    ]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, runs)))
    flags = "--cases recall --feature-maps softmax --steps 200 --output"
    small.main([*flags.split(), str(tmp_path)])
    text = (tmp_path / "recall.md").read_text()
    assert "| exact | 0 | 1.0000 | 2.000 |  |  | 0 |" in text
    # differences 0.5, 0.1 and 0.9
    assert text.count("| other | 200 | 0.5000 | 2.500 | +0.500 | 0.231 | 7 |") == 2
    assert "--cases recall --steps 200" in text
