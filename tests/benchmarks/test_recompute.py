"""Memory of training steps with and without recomputation, and its tables."""

import re

import pytest

from benchmarks import alone, recompute


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept():
    """Measured in new processes."""
    plain, network = (
        alone.call(recompute.training_step, mode, 2**12, 1)[0]
        for mode in (None, "network")
    )
    # some 170 MB of each are TensorFlow's, whatever the length
    assert plain > 350e6
    assert network < 0.5 * plain


def test_the_command_measures_every_case_and_prints(monkeypatch, capsys):
    """The tests of `ReversibleBlock` check what it keeps in memory."""
    monkeypatch.setattr(recompute, "LENGTH_OF_BLOCKS", 128)
    few = {"blocks": (False, False), "reversible": (True, False)}
    monkeypatch.setattr(recompute, "BLOCKS", few)
    called = []

    def call(function, *arguments, initializer=None):
        called.append((function.__name__, arguments))
        return (2**22, 0.5) if initializer is None else function(*arguments)

    monkeypatch.setattr(alone, "call", call)
    recompute.main(["--depths", "1"])
    *_, plain, reversible = capsys.readouterr().out.splitlines()
    for line, name in ((plain, "blocks"), (reversible, "reversible")):
        assert re.fullmatch(rf"\| {name} \| -?[\d,]+ MB, \d+\.\d\d s \|", line)
    recompute.main(["--lengths", "256", "512"])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "| network | 4 MB, 0.50 s | 4 MB, 0.50 s |"
    assert called[:2] == [("step_of_blocks", (*few[name], 1)) for name in few]
    modes = (None, "block", "network")
    assert called[2:] == [("training_step", (m, n)) for m in modes for n in (256, 512)]
