"""Bytes of the standard library: which package are they of, and are two of one file?

The files are split by a hash of their names, a fifth of each package's held out.
Tokens are bytes plus 1; 0 is padding.
"""

import functools
import typing

import numpy as np

from benchmarks.learning import library

VOCABULARY_SIZE = 1 + 256
NUM_CLASSES = 10
# A package is a class if it has so many files that are not empty: one of prose in a
# single file can be held out only as a whole.
MIN_FILES = 10
# Of the files of a package, one in so many is held out.
ONE_OF = 5
# "Package" of the modules that are in none.
LOOSE = ""


class Text(typing.NamedTuple):
    """A file of the library: its path inside, its package, and its tokens."""

    name: str
    package: str
    tokens: np.ndarray


def draw_classified(part, length, random, batch_size):
    """Which package are these bytes of, anywhere in its files?

    The packages are equally likely, and each place of a package's files as any other.
    A chunk may well name its package, in an import, a header or a licence: to find such
    words is part of the task. Some files have near twins in the other part, as the
    tables of `encodings` do; what a package is like is what there is to learn.

    Args:
        part: str, "training" or "held out".
        length: int L.
        random: `np.random.Generator`.
        batch_size: int B.

    Returns:
        Inputs of shape `(B, L)`, indices into `class_names()` `(B, 1)`, ones `(B, 1)`.
    """
    classes = classes_of(part, length)
    x = np.empty((batch_size, length), np.int32)
    y = random.integers(len(classes), size=(batch_size, 1)).astype(np.int32)
    for row, label in enumerate(y[:, 0]):
        texts, chances = classes[label]
        tokens = texts[random.choice(len(texts), p=chances)].tokens
        x[row] = cut(tokens, random.integers(num_places(tokens, length)), length)
    return x, y, np.ones_like(y, np.float32)


def cut(tokens, start, length):
    """So many tokens from a place on, filled up with 0 where the file ends before."""
    chunk = tokens[start : start + length]
    return np.pad(chunk, (0, length - len(chunk)))


def num_places(tokens, length):
    """How many chunks a file has; one if it is shorter than a chunk."""
    return max(1, len(tokens) - length + 1)


@functools.cache
def classes_of(part, length):
    """For each class its texts, and how likely each is."""
    classes = []
    for name in class_names():
        texts = [text for text in read_texts()[part] if text.package == name]
        places = np.array([num_places(text.tokens, length) for text in texts])
        classes.append((texts, places / places.sum()))
    return classes


@functools.cache
def class_names():
    """The packages with most bytes, in order of their names.

    They differ between versions of Python: 3.11 is the last with `distutils`.
    """
    files = [text for texts in read_texts().values() for text in texts]
    count, size = {}, {}
    for text in files:
        count[text.package] = count.get(text.package, 0) + 1
        size[text.package] = size.get(text.package, 0) + len(text.tokens)
    packages = [name for name in count if name != LOOSE and count[name] >= MIN_FILES]
    return sorted(sorted(packages, key=size.get)[-NUM_CLASSES:])


@functools.cache
def read_texts():
    """All files that are not empty, "training" and "held out"."""
    packages = {}
    for name, content in library.read():
        package = name.parts[0] if len(name.parts) > 1 else LOOSE
        if content:
            packages.setdefault(package, []).append((name, content))
    parts = {"training": [], "held out": []}
    for package, files in packages.items():
        files.sort(key=lambda file: library.digest(file[0]))
        num_held_out = round(len(files) / ONE_OF)
        for index, (name, content) in enumerate(files):
            tokens = np.frombuffer(content, np.uint8).astype(np.int32) + 1
            part = "held out" if index < num_held_out else "training"
            parts[part].append(Text(name.as_posix(), package, tokens))
    return parts


def draw_pairs(part, length, random, batch_size):
    """Are two chunks of one file, that do not overlap, or of two files?

    One pair of two is of one file. A chunk by itself says nothing about it: pairs of
    two files hold each file, and each place of it, as often as pairs of one file do,
    as first and as second chunk. Files are at least two chunks long. They are of the
    packages of `draw_classified` or of no package; these groups are equally likely, and
    the files of one group are, so that two files are mostly of two packages.

    Args:
        part: str, "training" or "held out".
        length: int L.
        random: `np.random.Generator`.
        batch_size: int B.

    Returns:
        Inputs of shape `(2 * B, L)`, all first chunks and then all second chunks;
        targets `(B, 1)`, 1 for one file; ones `(B, 1)`.
    """
    texts, chances = pool_of(part, length)
    x = np.empty((2, batch_size, length), np.int32)
    y = random.integers(2, size=(batch_size, 1)).astype(np.int32)
    for row, of_one_file in enumerate(y[:, 0]):
        first, second = two_of(chances, random)
        if of_one_file:
            second = first
        starts = two_starts(len(texts[first].tokens), length, random)
        x[0, row] = cut(texts[first].tokens, starts[0], length)
        if not of_one_file:
            starts = two_starts(len(texts[second].tokens), length, random)
        x[1, row] = cut(texts[second].tokens, starts[1], length)
    return x.reshape(2 * batch_size, length), y, np.ones_like(y, np.float32)


def two_of(chances, random):
    """Two indices that differ, each of them as likely as `chances` say.

    The chances are arcs of a circle. A point lies in one arc; a second, further on by
    the largest arc at least, and as much away from a full turn, never lies in the same,
    and is anywhere with the same chance as the first.
    """
    ends = np.cumsum(chances)
    apart = random.uniform(chances.max(), 1 - chances.max())
    point = random.random()
    places = np.searchsorted(ends, [point, (point + apart) % 1], side="right")
    return np.minimum(places, len(chances) - 1)  # the last end may round below 1


def two_starts(size, length, random):
    """Where two chunks of a file begin that do not overlap, in either order."""
    before, after = np.sort(random.integers(size - 2 * length + 1, size=2))
    return random.permutation([before, after + length])


@functools.cache
def pool_of(part, length):
    """The texts of two chunks or more, and how likely each is."""
    groups = []
    for name in (LOOSE, *class_names()):
        texts = [
            text
            for text in read_texts()[part]
            if text.package == name and len(text.tokens) >= 2 * length
        ]
        groups += [texts] if texts else []
    chances = [1 / len(groups) / len(texts) for texts in groups for _ in texts]
    if not groups or max(chances) > 1 / 2:
        raise ValueError(
            "length must leave two groups of files that are two chunks long, or one "
            f"with two files. Received: part={part!r}, length={length}"
        )
    # in an order of its own: arcs that lie side by side are seldom drawn together
    order = np.random.default_rng(7).permutation(len(chances))
    texts = [text for texts in groups for text in texts]
    return [texts[index] for index in order], np.array(chances)[order]
