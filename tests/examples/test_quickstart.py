"""The quickstart, as a newcomer runs it."""

import ast
import re

import pytest

from examples import quickstart

ROWS = ["PerformerAttention", "ExactAttention", "LocalAttention", "no attention"]


def test_questions_are_far_from_the_answers_in_the_list():
    rows = quickstart.texts(20, seed=3)
    assert rows.shape == (20, quickstart.LENGTH)
    firsts = set()
    for row in rows.tolist():
        text = bytes(row).decode()
        parts = re.fullmatch(r"((?:[A-Z]\d){8})\.{64}((?:[A-Z]\d){8})", text)
        listed, asked = (re.findall("..", part) for part in parts.groups())
        assert sorted(listed) == sorted(asked)
        assert len({letter for letter, _ in listed}) == 8
        # a window and the short convolution reach 15 + 1 characters back
        starts = [text.index(letter, 80) for letter, _ in listed]
        digits = [text.index(letter) + 1 for letter, _ in listed]
        assert min(a - b for a, b in zip(starts, digits)) >= 65
        firsts.add(listed.index(asked[0]))
    assert len(firsts) > 4  # the order says nothing


@pytest.mark.slow
def test_attention_finds_the_answers_saves_loads_and_generates(
    capsys, monkeypatch, uncompiled
):
    assert list(quickstart.attentions()) == ROWS
    small = {"PAIRS": 4, "DOTS": 16, "WINDOW": 8, "LIST": 24, "LENGTH": 32}
    for name, value in small.items():
        monkeypatch.setattr(quickstart, name, value)
    names = ROWS[0], ROWS[-1]
    attentions = quickstart.attentions()
    chosen = {name: attentions[name] for name in names}
    monkeypatch.setattr(quickstart, "attentions", lambda: chosen)
    quickstart.main(steps=120)
    _, table, rest = capsys.readouterr().out.split("\n\n")
    header, *lines = table.splitlines()
    assert header.split() == ["attention", "seconds", "accuracy"]
    found = [re.fullmatch(r"(\S.*\S) +(\d+\.\d) +([01]\.\d\d)", line) for line in lines]
    assert [match[1] for match in found] == list(names)
    assert all(float(match[2]) > 0 for match in found)
    learned, guessed = (float(match[3]) for match in found)
    assert learned > 0.9 and guessed < 0.3
    equal, listed, generated = (
        ast.literal_eval(line.partition(":")[2].strip()) for line in rest.splitlines()
    )
    assert equal is True
    assert listed == bytes(quickstart.texts(1, quickstart.HELD_OUT)[0, :8].tolist())
    assert sum(a == b for a, b in zip(listed, generated)) >= 7
