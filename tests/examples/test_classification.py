"""The example `classification`, small."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from examples import classification


def test_tokens_are_the_pixels_with_ink():
    images = load_digits().images[:20]
    sequences = classification.to_sequences(images, np.random.default_rng(0))
    places = set()
    for image, ink, row, column in zip(images, *sequences):
        is_token = ink > 0
        assert is_token.sum() == (image > 0).sum()
        assert not (row[~is_token].any() or column[~is_token].any())
        page = np.zeros((classification.PAGE + 1, classification.PAGE + 1))
        page[row, column] = ink
        rows, columns = np.nonzero(image)
        top, left = (
            row[is_token].min() - rows.min(),
            column.min(where=is_token, initial=9),
        )
        left -= columns.min()
        np.testing.assert_array_equal(page[top : top + 8, left : left + 8], image)
        places.add((top, left))
    assert min(places) >= (1, 1) and max(places) <= (3, 3) and len(places) > 4


def test_held_out_digits_are_not_trained_on():
    digits = load_digits()
    (training, labels), (held_out, _) = classification.load_data(1347)
    assert held_out[0].shape[0] == 450
    # 1,347 sequences are one epoch: with the held-out ones every digit once
    total = training[0].sum() + held_out[0].sum()
    assert total == digits.images.sum() and len(labels) == 1347


@pytest.mark.slow
def test_it_trains_and_padding_changes_nothing(monkeypatch, eagerly):
    rows = {"Performer": classification.ROWS["Performer"]}  # others take time
    monkeypatch.setattr(classification, "ROWS", rows)
    monkeypatch.setattr(classification, "EVALUATIONS", 2)
    accuracies, changes = classification.main(steps=4, output_dir="out")
    assert changes["with masks"] < 1e-5 < 1e-3 < changes["without masks"]
    assert len(accuracies["Performer"]) == 2
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
