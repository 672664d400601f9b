"""The example `vision`, small."""

import numpy as np
import pytest
from PIL import Image

from examples import vision


@pytest.fixture
def photographs():
    """Two noisy photographs, whose right columns are darker than all others."""
    random = np.random.default_rng(0)
    made = random.integers(100, 256, (2, 140, 640, 3), dtype=np.uint8)
    made[:, :, vision.SPLIT :] //= 4
    return made


def test_crops_to_try_are_none_to_train_on(photographs):
    random = np.random.default_rng(0)
    training = vision.training_crops(photographs, 50, random)
    held_out = vision.held_out_crops(photographs)
    assert training.min() >= 100 and held_out.max() < 64
    # side by side, row after row
    left = photographs[1, 64:128, vision.SPLIT : vision.SPLIT + 64]
    np.testing.assert_array_equal(held_out[6], left)
    assert len(held_out) == 2 * 2 * 2


def test_patches_are_parts_of_the_crop_row_by_row(photographs):
    crops = photographs[:, :64, :64]
    patches = vision.to_patches(crops)
    assert patches.shape == (2, 256, 48)
    expected = crops[1, 4 * 3 : 4 * 4, 4 * 5 : 4 * 6] / 127.5 - 1
    np.testing.assert_allclose(patches[1, 3 * 16 + 5], expected.ravel(), rtol=1e-5)
    np.testing.assert_array_equal(vision.to_crops(patches), crops)


def test_three_in_four_patches_are_hidden(photographs):
    crops = photographs[:, :64, :64]
    given, means = vision.hide(crops, np.random.default_rng(0))
    seen, is_hidden = given["x"][..., :-1], given["sample_weight"] == 1
    assert (is_hidden.sum(1) == 192).all()
    assert (is_hidden[0] != is_hidden[1]).any()
    np.testing.assert_array_equal(given["x"][..., -1], is_hidden)
    assert not seen[is_hidden].any()
    np.testing.assert_array_equal(seen[~is_hidden], given["y"][~is_hidden])
    np.testing.assert_array_equal(vision.to_crops(given["y"] + means), crops)
    # the mean knows nothing of what is hidden
    at = is_hidden[1].reshape(16, 16).repeat(4, 0).repeat(4, 1)
    red, green, blue = crops[1][~at].mean(0) / 127.5 - 1
    expected = np.tile([red, green, blue], 16)[np.newaxis]
    np.testing.assert_allclose(means[1], expected, atol=1e-5)


def test_errors_are_those_of_hidden_pixels_in_greys():
    given = {"y": np.zeros((2, 3, 48)), "sample_weight": np.array([[1, 1, 0]] * 2)}
    predicted = np.zeros((2, 3, 48))
    predicted[0, 2] = 9  # was there to see
    predicted[1, 0, :24] = 2 / 127.5
    predicted[1, 1] = 1 / 127.5
    expected = 0, np.sqrt((0.5 * 4 + 1) / 2)
    np.testing.assert_allclose(vision.error_of(predicted, given), expected)


def test_a_hidden_pixel_is_a_mean_of_the_nearest_ones(photographs):
    crops = photographs[:, :64, :64]
    given, means = vision.hide(crops, np.random.default_rng(0))
    made = vision.to_crops(vision.nearest_pixels(given) + means).astype(float)
    crop = crops[1]
    is_hidden = given["sample_weight"][1].reshape(16, 16).repeat(4, 0).repeat(4, 1) == 1
    rows, columns = np.nonzero(~is_hidden)
    tried = 0
    for row, column in np.argwhere(is_hidden)[::97]:
        distance = np.hypot(rows - row, columns - column)
        order = np.argsort(distance)
        if distance[order[vision.NEAREST]] == distance[order[vision.NEAREST - 1]]:
            continue  # which of two comes in is open
        near = order[: vision.NEAREST]
        expected = np.average(
            crop[rows[near], columns[near]], 0, weights=1 / distance[near]
        )
        np.testing.assert_allclose(made[1, row, column], expected, atol=1)
        tried += 1
    assert tried > 3


@pytest.mark.slow
def test_attention_learns_what_its_absence_does_not(monkeypatch, capsys):
    rows = ("no attention", "exact attention")  # the others are traced in more time
    few = {name: vision.ROWS[name] for name in rows}
    monkeypatch.setattr(vision, "ROWS", few)
    errors, pictures = vision.main(steps=60, output_dir="out")
    printed = capsys.readouterr().out
    for name, of_crops in errors.items():
        assert f"{name:30}{of_crops.mean():6.1f}" in printed
    nothing, exact = (errors[name].mean() for name in rows)
    assert exact < nothing - 5
    hidden, original = pictures["given"], pictures["the photographs"]
    is_given = (hidden != vision.GREY).any(-1)
    np.testing.assert_array_equal(hidden[is_given], original[is_given])
    for name in rows:
        np.testing.assert_array_equal(pictures[name][is_given], original[is_given])
    picture = np.asarray(Image.open("out/photographs.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
