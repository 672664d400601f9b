"""The example `documents`, small."""

import numpy as np
import pytest
from PIL import Image

from examples import documents

NUM_KINDS = len(documents.KINDS)


def test_files_are_of_their_kinds_and_none_is_in_both_parts():
    training, held_out = documents.read_files(at_most=8)
    assert len(training) == len(held_out) == NUM_KINDS
    both = [[bytes(x) for x in kind] for part in (training, held_out) for kind in part]
    found = [text for kind in both for text in kind]
    assert len(set(found)) == len(found) >= 8 * NUM_KINDS - 4
    assert min(map(len, found)) >= documents.PIECE
    begin = {"drawing": b"<?xml", "font": b"StartFontMetrics", "score": b"<?xml"}
    for index, name in enumerate(documents.KINDS):
        for text in both[index] + both[NUM_KINDS + index]:
            as_bytes = text.replace(b"\0", b"")  # some scores are in UTF-16
            assert (
                as_bytes[:20]
                .lstrip(b"\xef\xbb\xff\xfe\xbf")
                .startswith(begin.get(name, b""))
            )


def test_a_kind_stands_where_its_class_says():
    # eight kinds of files, of which each has bytes of its own, in ascending order
    files = [
        [
            (32 * kind + np.arange(600 + size) % 32).astype(np.uint8)
            for size in (0, 5, 9)
        ]
        for kind in range(NUM_KINDS)
    ]
    tokens, places = documents.documents(files, 50, np.random.default_rng(0))
    assert tokens.shape == (50, documents.LENGTH)
    np.testing.assert_array_equal(
        tokens[:, :NUM_KINDS], np.tile(range(256, 256 + NUM_KINDS), (50, 1))
    )
    pieces = tokens[:, NUM_KINDS:].reshape(50, NUM_KINDS, -1)
    for of_document, of_kinds in zip(pieces, places):
        assert sorted(of_kinds) == list(range(NUM_KINDS))
        for kind, place in enumerate(of_kinds):
            assert (of_document[place] // 32 == kind).all()
            assert set(np.diff(of_document[place])) <= {1, -31}
    assert len({tuple(x) for x in places}) > 45
    assert len({x[0, 0] % 32 for x in pieces}) > 10  # from anywhere in a file


def test_pieces_are_told_apart_by_counts_of_bytes_that_are_only_theirs():
    random = np.random.default_rng(0)

    def glued(count, told):
        places = np.stack([random.permutation(NUM_KINDS) for _ in range(count)])
        pieces = random.integers(0, 32, (count, NUM_KINDS, documents.PIECE))
        if told:
            pieces += 32 * np.argsort(places)[..., np.newaxis]
        questions = np.zeros((count, NUM_KINDS), int)
        return np.concatenate([questions, pieces.reshape(count, -1)], 1), places

    assert documents.told_the_pieces(glued(20, True), glued(20, True)) == 1.0
    # a guess is right once in eight times: 4 standard errors of 400 are 0.066
    assert abs(
        documents.told_the_pieces(glued(20, False), glued(50, False)) - 1 / 8
    ) < (0.066)


def test_the_mean_and_the_places():
    x = np.random.default_rng(0).normal(size=(2, 130, 4)).astype("float32")
    mixed = documents.Mean()(x)
    np.testing.assert_allclose(
        mixed, np.tile(x.mean(1, keepdims=True), (1, 130, 1)), atol=1e-6
    )
    layer = documents.Places()
    added = layer(x) - x
    (table,) = layer.get_weights()
    for place in (0, 63, 64, 129):
        expected = np.tile(table[place // 64], (2, 1))
        np.testing.assert_allclose(added[:, place], expected, atol=1e-6)


@pytest.mark.slow
def test_the_table_has_what_the_models_reached(monkeypatch, capsys):
    few = {"mean of all tokens": documents.ROWS["mean of all tokens"]}  # time
    monkeypatch.setattr(documents, "ROWS", few)
    monkeypatch.setattr(documents, "PIECE", 64)
    monkeypatch.setattr(documents, "LENGTH", NUM_KINDS * 65)
    made, original = [], documents.make_model

    def make_model(attention):
        made.append(original(attention))
        return made[-1]

    monkeypatch.setattr(documents, "make_model", make_model)
    told, curves, seconds = documents.main(steps=10, output_dir="out")
    printed = capsys.readouterr().out
    assert f"{'counts, told the pieces':28}{told:8.3f}" in printed
    (curve,) = curves.values()
    assert len(curve) == 10 and f"{'mean of all tokens':28}{curve[-1]:8.3f}" in printed
    assert list(seconds) == ["mean of all tokens", "exact attention"]
    assert min(seconds.values()) > 0 and len(made) == 2
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
