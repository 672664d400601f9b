"""Digits on a canvas are scikit-learn's, and no training image is held out."""

import functools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from benchmarks.learning.tasks import fixed
from benchmarks.long_range import baselines, images


@pytest.mark.parametrize(("size", "scale"), [(20, 1), (40, 3), (16, 2)])
def test_a_digit_stands_enlarged_on_an_empty_canvas(size, scale):
    x, y, w = images.draw_digits("training", size, scale, np.random.default_rng(0), 80)
    assert x.shape == (80, size * size) and x.dtype == np.int32
    assert (w == np.ones((80, 1))).all()
    digits = load_digits()
    corners = set()
    for canvas, label in zip(x.reshape(-1, size, size), y[:, 0]):
        # of the images of this class, the one that stands somewhere
        known = digits.images[digits.target == label].astype(int)
        corner = corner_of(canvas, known, scale)
        corners.add(corner)
    assert len(corners) > 1 or size == 8 * scale


def corner_of(canvas, known, scale):
    """Where on a canvas one of the known images stands, all else being 0."""
    side = 8 * scale
    room = len(canvas) - side + 1
    for top, left in np.ndindex(room, room):
        region = canvas[top : top + side, left : left + side]
        if region.sum() == canvas.sum():
            small = region[::scale, ::scale]
            enlarged = small.repeat(scale, axis=0).repeat(scale, axis=1)
            if (enlarged == region).all() and (known == small).all((1, 2)).any():
                return top, left
    raise AssertionError("No known image stands on the canvas.")


def test_every_place_is_reached():
    x, _, _ = images.draw_digits("training", 10, 1, np.random.default_rng(0), 300)
    used = x.reshape(-1, 10, 10).any(0)
    assert used[0].any() and used[-1].any() and used[:, 0].any() and used[:, -1].any()


def test_parts_share_no_image():
    rows = []
    for part in ("training", "held out"):
        x, _, _ = images.draw_digits(part, 8, 1, np.random.default_rng(0), 4000)
        rows.append({row.tobytes() for row in x})
    assert len(rows[0]) > 1200 and len(rows[1]) == 360
    assert not rows[0] & rows[1]


def test_the_same_generator_draws_the_same():
    first, again, other = (
        images.draw_digits("held out", 32, 2, np.random.default_rng(seed), 5)
        for seed in (1, 1, 2)
    )
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert (first[0] != other[0]).any()


@pytest.mark.parametrize(("size", "scale"), [(31, 4), (8, 0)])
def test_a_canvas_too_small_is_told(size, scale):
    with pytest.raises(ValueError, match=f"size={size}, scale={scale}"):
        images.draw_digits("training", size, scale, np.random.default_rng(0), 1)


def test_values_counted_tell_some_digits():
    held_out = fixed(
        functools.partial(images.draw_digits, "held out", 32, 2), 400, 1024
    )
    training = functools.partial(images.draw_digits, "training", 32, 2)
    accuracy = baselines.histogram_accuracy(training, held_out, 1500, 17)
    assert 0.2 < accuracy < 0.4
