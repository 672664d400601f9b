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


def run(capsys, **options):
    """The rows of the table as `{name: (seconds, accuracy)}`, and what follows it."""
    quickstart.main(**options)
    _, table, rest = capsys.readouterr().out.split("\n\n")
    header, *lines = table.splitlines()
    assert header.split() == ["attention", "seconds", "accuracy"]
    found = [re.fullmatch(r"(\S.*\S) +(\d+\.\d) +([01]\.\d\d)", line) for line in lines]
    rows = {match[1]: (float(match[2]), float(match[3])) for match in found}
    same, listed, generated = (
        ast.literal_eval(line.partition(":")[2].strip()) for line in rest.splitlines()
    )
    assert same is True
    assert listed == bytes(quickstart.texts(1, quickstart.HELD_OUT)[0, :16].tolist())
    return rows, listed, generated


@pytest.mark.slow
def test_it_prints_its_table_saves_loads_and_generates(capsys, uncompiled):
    rows, listed, generated = run(capsys, steps=2)
    assert list(rows) == ROWS
    assert all(seconds > 0 and right < 0.3 for seconds, right in rows.values())
    assert len(generated) == 16 and generated[::2] == listed[::2]


@pytest.mark.slow
def test_this_attention_finds_the_answers(capsys, monkeypatch):
    names = ROWS[0], ROWS[-1]
    attentions = quickstart.attentions()
    chosen = {name: attentions[name] for name in names}
    monkeypatch.setattr(quickstart, "attentions", lambda: chosen)
    rows, listed, generated = run(capsys, seed=1)
    (_, found), (_, guessed) = (rows[name] for name in names)
    assert found > 0.95
    assert guessed < 0.6
    assert sum(a == b for a, b in zip(listed, generated)) >= 15
