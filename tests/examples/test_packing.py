"""The example `packing`, small."""

import numpy as np
import pytest

from examples import packing


def test_documents_share_rows_and_none_is_lost():
    texts = [bytes([n] * n) for n in (3, 9, 2, 5, 4, 1)]
    rows = packing.first_fit(texts, length=10)
    assert [[len(text) for text in row] for row in rows] == [[9, 1], [5, 4], [3, 2]]
    assert sorted(text for row in rows for text in row) == sorted(texts)


def test_rows_have_the_number_of_their_documents():
    tokens, ids = packing.rows_of([[b"ab\0", b"c\0"], [b"\xff\0"]], length=6)
    assert tokens.shape == ids.shape == (packing.BATCH, 6)
    np.testing.assert_array_equal(tokens[:2], [[97, 98, 0, 99, 0, 0], [255, *[0] * 5]])
    np.testing.assert_array_equal(ids[:2], [[1, 1, 1, 2, 2, 0], [1, 1, *[0] * 4]])
    assert not ids[2:].any()
    # neither from one document to the next nor into padding is anything predicted
    given = packing.of_fit((tokens, ids))
    np.testing.assert_array_equal(given["y"][0], [98, 0, 99, 0, 0, 0])
    np.testing.assert_array_equal(
        given["sample_weight"][:2], [[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    )


def test_docstrings_are_those_of_the_standard_library():
    texts = packing.read_docstrings(30, 200)
    assert len(texts) == 30 and max(map(len, texts)) <= 200
    assert all(text.endswith(b"\0") and text.count(b"\0") == 1 for text in texts)


@pytest.mark.slow
def test_packed_documents_are_predicted_as_alone(capsys, one_block, eagerly):
    table, difference = packing.main(documents=40, passes=1, length=128)
    assert difference < 1e-4
    padded, packed, mixed = table.values()
    assert packed[0] < padded[0] / 2 and packed[1] < padded[1]
    assert all(2 < bits < 8 for *_, bits in table.values())
    # what a document learns from its neighbours is something else
    assert packed[3] != pytest.approx(mixed[3], abs=1e-4)
    assert f"{packed[3]:.3f}" in capsys.readouterr().out
