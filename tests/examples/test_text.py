"""The example `text`, small."""

import collections
import pathlib
import sysconfig

import numpy as np
import pytest
from PIL import Image

from examples import text


def counted_bits(training, test, num_before):
    """`table_bits` byte by byte."""
    followers = collections.defaultdict(collections.Counter)
    for end in range(len(training)):
        for n in range(min(num_before, end) + 1):
            followers[bytes(training[end - n : end])][training[end]] += 1
    bits = []
    for inputs, targets in zip(*test):
        for index in range(num_before, len(targets)):
            probability = 1 / 256
            for n in range(num_before + 1):
                seen = followers[bytes(inputs[index + 1 - n : index + 1])]
                probability = (seen[targets[index]] + probability) / (seen.total() + 1)
            bits.append(-np.log2(probability))
    return np.mean(bits)


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_tables_are_counts_of_what_followed(num_before):
    random = np.random.default_rng(0)
    letters = np.frombuffer(b"abcd\xff", np.uint8)
    training, held_out = letters[random.integers(0, 5, 97)], letters[[3, 1, 4, 1, 0, 2]]
    test = text.windows(held_out, [0, 1], 4)
    expected = counted_bits(training, test, num_before)
    assert text.table_bits(training, test, num_before) == pytest.approx(expected)


def test_a_window_is_followed_by_its_targets():
    inputs, targets = text.windows(np.arange(9, dtype=np.uint8), [0, 5], 3)
    np.testing.assert_array_equal(inputs, [[0, 1, 2], [5, 6, 7]])
    np.testing.assert_array_equal(targets, [[1, 2, 3], [6, 7, 8]])


def test_every_module_is_read_once():
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    files = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    training, held_out = text.read_sources()
    assert training.size + held_out.size == sum(map(len, files))
    assert bytes(held_out).startswith(files[0] + files[10])
    assert bytes(training).startswith(files[1] + files[2])


@pytest.mark.slow
def test_it_trains_compares_with_tables_and_continues(
    capsys, monkeypatch, one_block, eagerly
):
    rows = {name: text.ROWS[name] for name in ("no attention", "Performer")}
    monkeypatch.setattr(text, "ROWS", rows)
    monkeypatch.setattr(text, "EVALUATIONS", 2)
    tables, curves = text.main(steps=8, output_dir="out", length=32)
    assert list(curves) == list(rows) and len(tables) == 3
    for curve in curves.values():
        assert len(curve) == 2 and curve[-1] < curve[0] < 8.5
    printed = capsys.readouterr().out
    assert printed.count("\n    def ") == 2
    assert f"Performer                     {curves['Performer'][-1]:.3f}" in printed
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
