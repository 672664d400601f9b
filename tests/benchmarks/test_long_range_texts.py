"""Chunks are of the files that they are said to be of, and alone say nothing."""

import collections
import functools
import pathlib
import sysconfig

import numpy as np
import pytest

from benchmarks.learning.tasks import fixed
from benchmarks.long_range import baselines, texts

PARTS = ["training", "held out"]
LIBRARY = pathlib.Path(sysconfig.get_path("stdlib"))


@functools.cache
def contents(part):
    """Names and bytes of the files of a part, read anew."""
    return {
        text.name: (LIBRARY / text.name).read_bytes()
        for text in texts.read_texts()[part]
    }


def package_of(name):
    """The first folder, empty for the modules in the library's own."""
    return name.split("/")[0] if "/" in name else ""


def chunk_of(row):
    """The bytes of a row, which may end with padding but has none inside."""
    size = np.count_nonzero(row)
    assert size and not row[size:].any()
    return (row[:size] - 1).astype(np.uint8).tobytes()


def test_each_file_is_in_one_part_and_a_fifth_of_each_package_is_held_out():
    names = [set(contents(part)) for part in PARTS]
    assert not names[0] & names[1]
    assert not any("test" in pathlib.Path(x).parts for x in names[0] | names[1])
    for package in (*texts.class_names(), texts.LOOSE):
        training, held_out = (
            sum(package == package_of(name) for name in part) for part in names
        )
        assert held_out >= 2
        assert abs(5 * held_out - (training + held_out)) <= 2.5


def test_classes_are_the_largest_packages_of_ten_files():
    folders = collections.defaultdict(list)
    for part in PARTS:
        for name, content in contents(part).items():
            folders[package_of(name)].append(len(content))
    del folders[""]
    large = {x: sum(sizes) for x, sizes in folders.items() if len(sizes) >= 10}
    names = texts.class_names()
    assert names == sorted(names) and len(names) == 10
    smallest = min(large[name] for name in names)
    assert all(large[name] < smallest for name in large.keys() - set(names))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("length", [97, 4096])
def test_chunks_are_bytes_of_the_class_and_part(part, length):
    x, y, w = texts.draw_classified(part, length, np.random.default_rng(0), 100)
    assert x.shape == (100, length) and x.dtype == np.int32
    assert y.shape == (100, 1) and (w == np.ones((100, 1))).all()
    at_the_start = 0
    for row, label in zip(x, y[:, 0]):
        folder = texts.class_names()[label] + "/"
        files = [b for name, b in contents(part).items() if name.startswith(folder)]
        chunk = chunk_of(row)
        if len(chunk) < length:
            assert chunk in files
        else:
            assert any(chunk in content for content in files)
            at_the_start += any(content.startswith(chunk) for content in files)
    assert at_the_start < 20


def test_classes_are_equally_likely_and_places_of_a_class_too():
    random = np.random.default_rng(0)
    _, y, _ = texts.draw_classified("training", 8, random, 5000)
    counts = np.bincount(y[:, 0], minlength=10)
    assert np.abs(counts - 500).max() < 4.5 * np.sqrt(5000 * 0.1 * 0.9)
    for files, chances in texts.classes_of("training", 1000):
        sizes = [len(contents("training")[text.name]) for text in files]
        places = np.array([max(1, size - 999) for size in sizes])
        np.testing.assert_allclose(chances, places / sum(places))


def test_files_of_a_class_are_drawn_as_often_as_they_have_places(monkeypatch):
    files = [texts.Text(str(n), "p", np.full(n, n)) for n in (2, 5, 13)]
    monkeypatch.setattr(texts, "read_texts", lambda: {"training": files})
    monkeypatch.setattr(texts, "class_names", lambda: ["p"])
    monkeypatch.setattr(texts, "classes_of", texts.classes_of.__wrapped__)
    x, _, _ = texts.draw_classified("training", 4, np.random.default_rng(0), 4000)
    shares = np.bincount(x[:, 0])[[2, 5, 13]] / 4000
    places = np.array([1, 2, 10]) / 13
    assert np.abs(shares - places).max() < 4.5 * np.sqrt(0.25 / 4000)


def test_a_file_that_is_shorter_ends_with_padding():
    np.testing.assert_array_equal(texts.cut(np.array([5, 6, 7]), 0, 5), [5, 6, 7, 0, 0])
    assert [texts.num_places(np.ones(n), 5) for n in (3, 5, 7)] == [1, 1, 3]


@pytest.mark.parametrize("part", PARTS)
def test_pairs_of_one_file_are_of_one_file_and_do_not_overlap(part):
    length = 500
    x, y, w = texts.draw_pairs(part, length, np.random.default_rng(0), 100)
    assert x.shape == (200, length) and x.dtype == np.int32 and x.all()
    assert y.shape == (100, 1) and (w == np.ones((100, 1))).all()
    orders = set()
    for first, second, of_one_file in zip(x[:100], x[100:], y[:, 0]):
        chunks = chunk_of(first), chunk_of(second)
        found = [
            {name for name, content in contents(part).items() if chunk in content}
            for chunk in chunks
        ]
        assert all(found)
        # rarely does a chunk stand in two files, or at two places of one
        if min(map(len, found)) == 1:
            assert bool(found[0] & found[1]) == of_one_file
        if of_one_file:
            content = contents(part)[(found[0] & found[1]).pop()]
            if all(content.count(chunk) == 1 for chunk in chunks):
                places = [content.index(chunk) for chunk in chunks]
                assert abs(places[0] - places[1]) >= length
                orders.add(places[0] < places[1])
    assert orders == {True, False}
    assert 30 < y.sum() < 70


def test_a_chunk_alone_says_nothing(monkeypatch):
    """Files and places are as frequent with one file as with two, first and second."""
    sizes = [20, 20, 25, 30, 60]
    chances = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    # each token tells its file and its place
    files = [
        texts.Text(str(i), "p", 100 * i + np.arange(n)) for i, n in enumerate(sizes)
    ]
    monkeypatch.setattr(texts, "pool_of", lambda *_: (files, chances))
    count = 20_000
    x, y, _ = texts.draw_pairs("training", 10, np.random.default_rng(3), count)
    first, second = x[:count, 0], x[count:, 0]
    of_one_file = y[:, 0] == 1
    np.testing.assert_array_equal(first // 100 == second // 100, of_one_file)
    assert (abs(first - second)[of_one_file] >= 10).all()
    for chunks in (first, second):
        shares = [
            np.bincount(chunks[rows], minlength=500) / rows.sum()
            for rows in (of_one_file, ~of_one_file)
        ]
        error = np.sqrt((shares[0] + shares[1]) * 2 / count)
        z = (shares[0] - shares[1])[error > 0] / error[error > 0]
        assert np.abs(z).max() < 4.5
        for rows in (of_one_file, ~of_one_file):
            in_file = np.bincount(chunks[rows] // 100) / rows.sum()
            assert np.abs(in_file - chances).max() < 4.5 * np.sqrt(0.25 / rows.sum())


def test_groups_are_equally_likely_and_their_files_are():
    files, chances = texts.pool_of("training", 1024)
    assert min(len(text.tokens) for text in files) >= 2048
    of_group = collections.defaultdict(list)
    for text, chance in zip(files, chances):
        of_group[text.package].append(chance)
    assert set(of_group) == {texts.LOOSE, *texts.class_names()}
    for group in of_group.values():
        np.testing.assert_allclose(group, 1 / len(of_group) / len(group))


def test_chunks_too_long_for_two_files_are_told(monkeypatch):
    with pytest.raises(
        ValueError, match="two chunks long.*'training'.*length=10000000"
    ):
        texts.draw_pairs("training", 10**7, np.random.default_rng(0), 1)
    # one file is too few; a file that is half of all still leaves a second
    pool = texts.pool_of.__wrapped__
    files = [texts.Text("x", package, np.ones(9)) for package in ("a", "b", "b")]
    monkeypatch.setattr(texts, "class_names", lambda: ["a", "b"])
    monkeypatch.setattr(texts, "read_texts", lambda: {"training": files})
    np.testing.assert_allclose(sorted(pool("training", 4)[1]), [0.25, 0.25, 0.5])
    monkeypatch.setattr(texts, "read_texts", lambda: {"training": files[:1]})
    with pytest.raises(ValueError, match="length=4"):
        pool("training", 4)


@pytest.mark.parametrize("draw", [texts.draw_classified, texts.draw_pairs])
def test_the_same_generator_draws_the_same(draw):
    first, again, other = (
        draw("training", 64, np.random.default_rng(seed), 5) for seed in (1, 1, 2)
    )
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert (first[0] != other[0]).any()


@pytest.mark.parametrize(
    ("draw", "pairs", "low", "high"),
    [
        (texts.draw_classified, False, 0.35, 0.75),
        (texts.draw_pairs, True, 0.6, 0.85),
    ],
)
def test_bytes_counted_are_better_than_a_guess_but_do_not_do(draw, pairs, low, high):
    held_out = fixed(functools.partial(draw, "held out", 1024), 400, 1024)
    training = functools.partial(draw, "training", 1024)
    accuracy = baselines.histogram_accuracy(training, held_out, 1000, 257, pairs)
    assert low < accuracy < high
