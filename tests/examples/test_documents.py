"""The example `documents`, small."""

import numpy as np
import pytest
from PIL import Image

from examples import documents


def test_files_are_of_their_kinds_and_none_is_in_both_parts():
    training, held_out = documents.read_files()
    found = [bytes(x) for part in (training, held_out) for kind in part for x in kind]
    assert len(set(found)) == len(found)
    least = documents.AROUND, documents.PIECE, documents.PIECE
    for kind, (known, unknown, size) in enumerate(zip(training, held_out, least)):
        assert 2 <= len(known) // len(unknown) <= 3 and len(unknown) >= 5
        for file in known + unknown:
            assert len(file) >= size
            begins = [b"", b"<?xml", b"StartFontMetrics"][kind]
            assert bytes(file).startswith(begins)


def test_the_class_says_which_table_stands_first():
    # bytes of each of three files are its own and ascend
    files = [
        [(80 * kind + np.arange(2048 + size) % 80).astype(np.uint8) for size in (0, 5)]
        for kind in range(3)
    ]
    tokens, font_first = documents.documents(files, 60, np.random.default_rng(0))
    assert tokens.shape == (60, documents.LENGTH)
    assert 15 < font_first.sum() < 45
    starts = []
    for document, swapped in zip(tokens, font_first):
        kinds = document // 80
        drawing, font = (np.flatnonzero(kinds == kind) for kind in (1, 2))
        assert (font[0] < drawing[0]) == swapped
        for place in (drawing, font):
            assert len(place) == place[-1] - place[0] + 1 == documents.PIECE
        for kind in range(3):
            part = document[kinds == kind].astype(int)
            assert set(np.diff(part)) <= {1, -79}
        starts.append((drawing[0], font[0]))
    assert len({x for x, _ in starts}) > 40 and len({x for _, x in starts}) > 40


def test_counts_tell_what_depends_on_them_and_not_the_order():
    random = np.random.default_rng(0)

    def counted(count):
        tokens = random.integers(0, 40, (count, 300))
        classes = np.arange(count) % 2
        return tokens + 3 * classes[:, np.newaxis], classes

    def ordered(count):
        tokens = np.sort(random.integers(0, 40, (count, 300)))
        classes = np.arange(count) % 2
        tokens[classes == 1] = tokens[classes == 1, ::-1]
        return tokens, classes

    assert documents.accuracy_of_counts(counted(100), counted(100)) == 1.0
    # a guess is right every other time: 4 standard errors of 400 are 0.1
    assert abs(documents.accuracy_of_counts(ordered(100), ordered(400)) - 0.5) < 0.1


@pytest.mark.slow
def test_attention_learns_the_order_its_absence_does_not(monkeypatch, capsys):
    rows = ("no attention", "Performer")  # the other is traced in more time
    few = {name: documents.ROWS[name] for name in rows}
    monkeypatch.setattr(documents, "ROWS", few)
    monkeypatch.setattr(documents, "LENGTH", 512)
    monkeypatch.setattr(documents, "PIECE", 128)
    monkeypatch.setattr(documents, "AROUND", 256)
    counted, curves, seconds = documents.main(steps=150, output_dir="out")
    printed = capsys.readouterr().out
    assert f"{'counts of bytes':20}{counted:8.3f}" in printed
    for name, curve in curves.items():
        assert len(curve) == 5 and f"{name:20}{curve[-1]:8.3f}" in printed
    assert list(seconds) == [*rows, "exact attention"] and min(seconds.values()) > 0
    # of 120 documents, a guess is right every other time: 4 standard errors are 0.18
    assert abs(curves["no attention"][-1] - 0.5) < 0.18 < curves["Performer"][-1] - 0.5
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
