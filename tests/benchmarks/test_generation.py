"""`generate` beside KerasHub's: what is compared, what is left out, the table."""

import pytest

from benchmarks import generation, machine
from benchmarks.contenders import generate_ours


def test_those_of_one_prompt_and_batch_take_turns():
    groups = list(generation.groups([100, 4000], [1, 64], new_tokens=32))
    places = [{(case["prompt_length"], case["batch"]) for case in g} for g in groups]
    assert places == [{(100, 1)}, {(100, 64)}, {(4000, 1)}, {(4000, 64)}]
    for group in groups:
        sides = [(case["environment"], case["mode"]) for case in group]
        assert sides == list(generation.CONTENDERS)


def test_what_memory_does_not_hold_is_left_out(monkeypatch):
    ours, hub, _ = next(generation.groups([4000], [64], new_tokens=96))
    # 3 matrices of 64 x 4 heads of 4,096 x 4,096 float32
    monkeypatch.setattr(machine, "free_bytes", lambda: 3 * 2**34)
    assert generation.too_large(hub).startswith("needs 52 GB")
    assert generation.too_large(ours) is None
    monkeypatch.setattr(machine, "free_bytes", lambda: 3 * 2**34 + 1)
    assert generation.too_large(hub) is None


def test_the_table_has_speeds_or_reasons():
    ours, graph, xla = next(generation.groups([100], [8], new_tokens=50))
    rows = [
        {**ours, "times": [1.0, 2.0, 30.0], "reason": None},
        {**graph, "times": [4.0], "reason": None},
        {**xla, "times": [], "reason": "needs 52 GB"},
    ]
    line = "| 100 | 50 | 8 | 200.0 | 100.0 | needs 52 GB | 2.00 |"
    assert generation.table({"rows": rows}).splitlines()[-1] == line


def test_our_program_makes_as_many_tokens_as_asked(monkeypatch):
    sizes = dict(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=8)
    case = dict(prompt_length=3, new_tokens=4, batch=2, sizes=sizes)
    made = []
    generate = generate_ours.keras_performer.generate
    monkeypatch.setattr(
        generate_ours.keras_performer,
        "generate",
        lambda *args, **options: made.append(generate(*args, **options)) or made[-1],
    )
    _, run = generate_ours.program(case)
    run()
    assert made[0].shape == (2, 7)
    case["sizes"]["num_heads"] = 3  # the sizes are those of the case
    with pytest.raises(ValueError, match="num_heads"):
        generate_ours.program(case)
