"""Circles are joined or not as the classes say, and nothing simpler tells them."""

import dataclasses

import numpy as np
import pytest
from scipy import ndimage
from sklearn.linear_model import LogisticRegression

from benchmarks.long_range import pathfinder

SIZES = sorted(pathfinder.STYLES)
# Pictures of geometry are looked at so many times larger.
LARGER = 6
# Between 0 and 255, what is bright in a picture.
BRIGHT = 80


@pytest.fixture(scope="module")
def batch():
    return pathfinder.draw(32, np.random.default_rng(0), 500)


def components(bright, reach):
    """Labels of what is bright or not farther than `reach` pixels from it."""
    return ndimage.label(ndimage.distance_transform_edt(~bright) <= reach)


def are_joined(picture, style):
    """Looks for circles and for what joins them, in nothing but pixels."""
    fine = ndimage.zoom(
        picture.astype(float), LARGER, order=1, grid_mode=True, mode="nearest"
    )
    bright = fine > BRIGHT
    # the middle of a circle is farther from black than a dash is wide
    inside = ndimage.distance_transform_edt(bright)
    first = np.unravel_index(inside.argmax(), inside.shape)
    rows, columns = np.indices(inside.shape)
    other = np.hypot(rows - first[0], columns - first[1]) > 2.5 * LARGER * style.radius
    second = np.unravel_index((inside * other).argmax(), inside.shape)
    labels, _ = components(bright, LARGER * (style.gap / 2 + 0.25))
    return labels[first] == labels[second]


@pytest.mark.parametrize(
    "size, number, right", [(16, 80, 0.9), (32, 60, 0.97), (64, 20, 1)]
)
def test_classes_are_seen_in_the_pixels(size, number, right):
    x, y, w = pathfinder.draw(size, np.random.default_rng(0), number)
    style = pathfinder.STYLES[size]
    found = [are_joined(image.reshape(size, size), style) for image in x]
    assert np.mean(found == y[:, 0]) >= right
    assert w.shape == y.shape and (w == 1).all()
    assert x.min() == 0 and x.max() == 255


def enlarged(size, style, paths, centres):
    """What is bright in a picture of the same lines, with thinner edges."""
    lengths = ("dash", "gap", "margin", "width", "radius")
    larger = {name: LARGER * getattr(style, name) for name in lengths}
    picture = pathfinder.picture(
        LARGER * size,
        dataclasses.replace(style, **larger),
        [LARGER * path for path in paths],
        LARGER * np.array(centres),
    )
    return picture > 127


@pytest.mark.parametrize("size", SIZES)
def test_lines_join_exactly_what_a_class_says(size):
    style, random = pathfinder.STYLES[size], np.random.default_rng(1)
    num_dashes = 2 * style.num_dashes + style.num_distractors * style.distractor_dashes
    for joined in [0, 1] * 8:
        paths = pathfinder.place(size, style, random)
        centres = pathfinder.circles(paths, joined)
        bright = enlarged(size, style, paths, centres)
        # gaps are closed, with a little more where a path turns, and no margin is
        reach = LARGER * (style.gap + style.margin) / 4
        assert 1.1 * LARGER * style.gap / 2 < reach < 0.9 * LARGER * style.margin / 2
        labels, number = components(bright, reach)
        assert number == 2 + style.num_distractors
        first, second = (labels[tuple((LARGER * c[::-1]).astype(int))] for c in centres)
        assert first and second and (first == second) == joined
        # no dash touches another one
        assert components(bright, 0)[1] == num_dashes


@pytest.mark.parametrize("size", SIZES)
def test_paths_are_as_the_style_says(size):
    style, random = pathfinder.STYLES[size], np.random.default_rng(2)
    turns = []
    for _ in range(20):
        paths = pathfinder.place(size, style, random)
        assert [len(path) for path in paths] == (
            [style.num_dashes] * 2 + [style.distractor_dashes] * style.num_distractors
        )
        for path in paths:
            assert path.min() > 0 and path.max() < size
            along = (path[:, 1] - path[:, 0]) @ [1, 1j]
            np.testing.assert_allclose(np.abs(along), style.dash)
            turned = np.angle(along[1:] / along[:-1])
            # half a gap straight on, and half a gap turned
            gaps = np.abs((path[1:, 0] - path[:-1, 1]) @ [1, 1j])
            np.testing.assert_allclose(gaps, style.gap * np.cos(turned / 2))
            turns.extend(turned)
    assert 0.9 * style.max_turn < np.abs(turns).max() <= style.max_turn


def test_a_path_that_turns_much_keeps_away_from_itself():
    style = dataclasses.replace(pathfinder.STYLES[64], max_turn=1.4)
    random, along = np.random.default_rng(4), np.linspace(0, 1, 20)
    nearest = []
    for _ in range(200):
        begun = pathfinder.anywhere(64, random)
        path = pathfinder.Room(64, style).path(begun, style.num_dashes, random)
        starts, ends = (path @ np.array([1, 1j])).T
        points = starts[:, np.newaxis] * (1 - along) + ends[:, np.newaxis] * along
        nearest.extend(
            np.abs(points[i][:, np.newaxis] - points[j]).min() - style.width
            for i in range(len(path))
            for j in range(i + 2, len(path))
        )
    # discs a pixel apart see distances a little larger than they are
    assert 0.9 * style.margin < min(nearest) < 1.1 * style.margin


@pytest.mark.parametrize("size", SIZES)
def test_circles_and_the_dashes_at_them_are_mirror_images(size):
    style, random = pathfinder.STYLES[size], np.random.default_rng(3)
    for _ in range(20):
        first, second = pathfinder.place(size, style, random)[:2] @ np.array([1, 1j])
        start, line = first[0, 0], first[0, 1] - first[0, 0]
        end = (first[-1, ::-1] - start) / line
        np.testing.assert_allclose((second[0] - start) / line, end.conj())
        # and the circles are not so close that it would be the same picture
        free = abs(second[0, 0] - first[-1, 1]) - 2 * style.radius
        assert free > style.margin - 1e-9


def features(x):
    """What can be said of pictures without saying where."""
    histograms = [np.bincount(image // 16, minlength=16) for image in x]
    return np.concatenate([np.sort(x, axis=1), histograms], axis=1)


@pytest.mark.parametrize("look", [features, np.asarray])
def test_a_linear_classifier_guesses(batch, look):
    x, y = look(batch[0]).astype(float), batch[1][:, 0]
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    classifier = LogisticRegression(C=0.01, max_iter=500).fit(x[:250], y[:250])
    standard_error = 0.5 / 250**0.5
    assert abs(classifier.score(x[250:], y[250:]) - 0.5) < 4 * standard_error


def test_both_classes_come_up_equally_often_and_equally_bright(batch):
    x, y, _ = batch
    assert abs(y.mean() - 0.5) < 4 * 0.5 / len(y) ** 0.5
    brightness = [x.mean(axis=1)[y[:, 0] == label] for label in (0, 1)]
    variances = [values.var(ddof=1) / len(values) for values in brightness]
    difference = brightness[1].mean() - brightness[0].mean()
    assert abs(difference) < 4 * sum(variances) ** 0.5


def test_a_seed_says_which_batch():
    batches = [pathfinder.draw(16, np.random.default_rng(seed), 8) for seed in (5, 5)]
    for first, second in zip(*batches):
        np.testing.assert_array_equal(first, second)
    other = pathfinder.draw(16, np.random.default_rng(6), 8)
    assert (batches[0][0] != other[0]).any()


def test_styles_can_be_changed():
    changes = dict(num_distractors=0, brightness=100)
    x, _, _ = pathfinder.draw(32, np.random.default_rng(0), 4, **changes)
    assert x.max() == 100
    for image in x.reshape(-1, 32, 32) > 0:
        gap = pathfinder.STYLES[32].gap / 2
        assert components(np.kron(image, np.ones((4, 4))) > 0, 4 * gap)[1] <= 2


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(size=20), r"size must be one of \[16, 32, 64\]"),
        (dict(batch_size=0), "batch_size must be a positive int"),
        (dict(num_dashes=1), "num_dashes must be an int of at least 2"),
        (dict(num_distractors=-1), "num_distractors must be an int of at least 0"),
        (dict(gap=0), "gap must be positive"),
        (dict(margin=1.0), "margin must be more than gap=1.0"),
        (dict(brightness=256), "brightness must be an int from 1 to 255"),
        (dict(num_dashes=60), "A picture must have room for its paths"),
    ],
)
def test_what_cannot_be_drawn(wrong, message):
    arguments = dict(size=16, batch_size=1, random=np.random.default_rng(0)) | wrong
    with pytest.raises(ValueError, match=message):
        pathfinder.draw(**arguments)
