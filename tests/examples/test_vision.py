"""The example `vision`, small."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from examples import vision


def test_a_page_is_a_photograph_with_a_digit_somewhere():
    # each pixel of this photograph tells where it is, and ink is lighter than all
    photograph = np.arange(30 * 40).reshape(30, 40) / 10**4
    digit = np.zeros((8, 8))
    digit[2, 5] = digit[7, 0] = 1
    pages = vision.lay([digit] * 60, [photograph], np.random.default_rng(0))
    assert pages.shape == (60, vision.PAGE, vision.PAGE)
    places, origins = set(), set()
    for page in pages:
        (row, column), (lower, left) = np.argwhere(page == 1)
        assert (lower, left) == (row + 5, column - 5)
        top, start = row - 2, column - 5
        assert 0 <= top <= vision.PAGE - 8 and 0 <= start <= vision.PAGE - 8
        places.add((top, start))
        corner = round(page[0, 0] * 10**4)
        if page[0, 0] < 1:
            origin = divmod(corner, 40)
            origins.add(origin)
            there = np.s_[origin[0] : origin[0] + 16, origin[1] : origin[1] + 16]
            is_ink = page == 1
            np.testing.assert_array_equal(page[~is_ink], photograph[there][~is_ink])
    assert len(places) > 30 and len(origins) > 30
    assert photograph.max() < 1  # the photograph itself stays as it was


def test_patches_are_parts_of_the_page_row_by_row():
    pages = np.random.default_rng(0).random((3, 16, 16), "float32")
    patches = vision.to_patches(pages)
    assert patches.shape == (3, 64, 4)
    expected = pages[1, 2 * 3 : 2 * 4, 2 * 5 : 2 * 6]
    np.testing.assert_array_equal(patches[1, 3 * 8 + 5], expected.ravel())
    np.testing.assert_array_equal(vision.to_pages(patches), pages)


def test_held_out_digits_and_photographs_are_not_trained_on(monkeypatch):
    given = []
    monkeypatch.setattr(vision, "lay", lambda *args: given.append(args[:2]) or args[0])
    monkeypatch.setattr(vision, "to_patches", lambda pages: pages)
    (training, labels), (test, test_labels) = vision.load_data(2000)
    assert len(training) == len(labels) == 2000 and len(test) == len(test_labels) == 450
    known, held_out = ({image.tobytes() for image in x} for x in (training, test))
    assert not known & held_out
    digits = load_digits()
    label_of = {
        (image / 16).tobytes(): label
        for image, label in zip(digits.images, digits.target)
    }
    for images, told in ((training, labels), (test, test_labels)):
        np.testing.assert_array_equal(told, [label_of[x.tobytes()] for x in images])
    (_, upper), (_, lower) = given
    for above, below, image in zip(upper, lower, load_sample_images().images):
        grey = vision.DIMMED * image.mean(-1) / 255
        np.testing.assert_array_equal(np.concatenate([above, below]), grey)
        assert abs(len(above) - len(below)) <= 1


@pytest.mark.slow
def test_it_trains_and_reads_pages(monkeypatch, capsys, eagerly):
    rows = {"Performer": vision.ROWS["Performer"]}  # others take time
    monkeypatch.setattr(vision, "ROWS", rows)
    monkeypatch.setattr(vision, "EVALUATIONS", 2)
    curves, read = vision.main(steps=2, output_dir="out")
    printed = capsys.readouterr().out
    _, (_, labels) = vision.load_data(1)  # the same whatever is trained on
    (curve,) = curves.values()
    assert len(curve) == 2 and f"{'Performer':20}{curve[-1]:.3f}" in printed
    right = (read["Performer"] == labels).mean()
    np.testing.assert_allclose(right, curve[-1], atol=1e-6)
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5


@pytest.mark.parametrize("name", vision.ROWS)
def test_each_row_reads_pages(name):
    make = vision.ROWS[name]["make"]
    model = vision.make_model(make(), make(), 10)
    patches = np.random.default_rng(0).random((2, 64, 4), "float32")
    logits = model(patches).numpy()
    assert logits.shape == (2, 10)
    # without attention a page is a bag of patches
    moved = np.abs(model(patches[:, ::-1]).numpy() - logits).max()
    assert moved < 1e-5 if name == "no attention" else moved > 1e-4
