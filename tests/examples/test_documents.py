"""The example `documents`, small."""

import numpy as np
import pytest
from PIL import Image

from examples import documents


def test_answers_stand_in_the_document_among_words_of_the_library():
    library = documents.Library()
    word_of = {index: word for word, index in library.ids.items()}
    for held_out in (False, True):
        source = library.held_out if held_out else library.training
        x, places = library.documents(6, 300, seed=3, held_out=held_out)
        assert x.shape == (6, 300) and places.shape == (6, len(documents.NAMES))
        first = set()
        for tokens, answers in zip(x, places):
            words = [word_of[token] for token in tokens]
            rest, told = list(tokens[16:]), {}
            for name in documents.NAMES:
                (at,) = [i for i, w in enumerate(words) if w == name and i >= 16]
                first.add(at)
                told[name] = words[at + 1]
                assert words[at + 2] == "."
            for at in sorted((words.index(n, 16) for n in told), reverse=True):
                del rest[at - 16 : at - 13]
            assert sorted(words[:16:2]) == sorted(told) and set(words[1:16:2]) == {"?"}
            expected = [documents.PLACES.index(told[name]) for name in words[:16:2]]
            np.testing.assert_array_equal(answers, expected)
            assert stands_in(source, rest)
        assert len(first) > 30  # anywhere
    assert not {*documents.NAMES, *documents.PLACES} & {
        word_of[token] for token in (*library.training, *library.held_out)
    }


def stands_in(source, words):
    starts = np.flatnonzero(source[: len(source) - len(words) + 1] == words[0])
    return any((source[i : i + len(words)] == words).all() for i in starts)


@pytest.mark.slow
def test_it_trains_and_draws(monkeypatch, capsys, eagerly):
    names = ("no attention", "Performer")
    rows = {name: documents.ROWS[name] for name in names}
    small = {"STAGES": ((48, 4, 1.0),), "EVALUATIONS": 2, "HELD_OUT": 20, "ROWS": rows}
    for name, value in small.items():
        monkeypatch.setattr(documents, name, value)
    curves = documents.main(steps=2, output_dir="out")
    printed = capsys.readouterr().out
    for name, curve in curves.items():
        assert [point[:2] for point in curve] == [(1, 48), (2, 48)]
        assert f"{name:22}{curve[-1][-1]:.3f}" in printed
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5


@pytest.mark.parametrize("name", ["local attention", "Performer"])
def test_each_row_answers_the_questions_of_a_document(name):
    library = documents.Library()
    model = documents.make_model(documents.ROWS[name]["make"], len(library.ids), 10)
    tokens, places = library.documents(2, 128, seed=1)
    logits = model(tokens).numpy()
    assert logits.shape == (*places.shape, len(documents.PLACES))
    # the end of a document reaches the first answer, beyond two windows, by attention
    other = np.concatenate([tokens[:, :96], tokens[:, :95:-1]], axis=1)
    moved = np.abs(model(other).numpy() - logits)[:, 0].max()
    assert (moved > 1e-5) == (name == "Performer")
