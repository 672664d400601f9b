"""What the models are to learn, second part: files and images that people made."""

import functools
import math

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.learning import library
from benchmarks.learning.tasks import Task, fixed
from examples.imagenet64.data import photographs

# Rows, columns and channels of an image whose sub-pixels are predicted.
SMALL_IMAGE = 16, 16, 3


def sources(length, **options):
    """The next byte of the standard library; one file of twenty is held out."""
    held_out = functools.partial(draw_sources, "held out", length)
    return Task(
        name=f"bytes {length:,}",
        length=length,
        vocabulary_size=256,
        draw=functools.partial(draw_sources, "training", length),
        held_out=functools.partial(fixed, held_out, 2**16 // length, length),
        measure="bits",
        hidden_dim=128,
        **options,
    )


def draw_sources(part, length, random, batch_size):
    text = read_sources()[part]
    starts = random.integers(len(text) - length - 1, size=batch_size)
    cut = text[starts[:, np.newaxis] + np.arange(length + 1)].astype(np.int32)
    return cut[:, :-1], cut[:, 1:], np.ones((batch_size, length), np.float32)


@functools.cache
def read_sources():
    """Bytes of the standard library without its tests, "training" and "held out"."""
    parts = {"training": [], "held out": []}
    for name, content in library.read():
        part = "training" if library.digest(name)[0] % 20 else "held out"
        parts[part].append(content)
    return {
        part: np.frombuffer(b"\n".join(files), np.uint8)
        for part, files in parts.items()
    }


def digits(fold, num_folds=5, **options):
    """Which digit an image of 8 x 8 pixels shows; every fifth image is held out."""
    return Task(
        name="digits",
        length=64,
        vocabulary_size=17,
        draw=functools.partial(draw_digits, fold, num_folds),
        held_out=functools.partial(held_out_digits, fold, num_folds),
        measure="accuracy",
        hidden_dim=64,
        num_classes=10,
        grid=(8, 8),
        **options,
    )


def draw_digits(fold, num_folds, random, batch_size):
    training, _ = split_digits(fold, num_folds)
    return labelled_digits(random.choice(training, batch_size))


def held_out_digits(fold, num_folds):
    _, held_out = split_digits(fold, num_folds)
    return [labelled_digits(held_out)]


@functools.cache
def split_digits(fold, num_folds):
    """Indices of the images to train on, and of those held out."""
    order = np.random.default_rng(99).permutation(len(read_digits().target))
    held_out = order[fold::num_folds]
    return np.setdiff1d(order, held_out), held_out


def labelled_digits(indices):
    x = read_digits().data[indices].astype(np.int32)
    y = read_digits().target[indices][:, np.newaxis].astype(np.int32)
    return x, y, np.ones_like(y, np.float32)


@functools.cache
def read_digits():
    return load_digits()


def images(**options):
    """The next sub-pixel of small crops of photographs, of other regions held out."""
    length = math.prod(SMALL_IMAGE)
    return Task(
        name=f"images {length:,}",
        length=length,
        vocabulary_size=256,
        draw=draw_images,
        held_out=held_out_images,
        measure="bits",
        hidden_dim=64,
        grid=SMALL_IMAGE,
        **options,
    )


def draw_images(random, batch_size):
    height, width, _ = SMALL_IMAGE
    crops = []
    for _ in range(batch_size):
        region = read_photographs()[0][random.integers(len(read_photographs()[0]))]
        top = random.integers(region.shape[0] - height + 1)
        left = random.integers(region.shape[1] - width + 1)
        crops.append(region[top : top + height, left : left + width])
    return sub_pixels(np.stack(crops))


def held_out_images(num_images=64, batch_size=8):
    """Crops that do not overlap, evenly from the held-out crops of the demo."""
    height, width, channels = SMALL_IMAGE
    crops = read_photographs()[1]
    tiles = crops.reshape(
        -1, crops.shape[1] // height, height, crops.shape[2] // width, width, channels
    )
    tiles = tiles.swapaxes(2, 3).reshape(-1, *SMALL_IMAGE)
    chosen = tiles[np.linspace(0, len(tiles) - 1, num_images).round().astype(int)]
    return [
        sub_pixels(chosen[start : start + batch_size])
        for start in range(0, num_images, batch_size)
    ]


@functools.cache
def read_photographs():
    """The regions to train on, and held-out crops of the demo, from its `data.py`."""
    crops, held_out = photographs()
    return crops.regions, held_out.read(0)


def sub_pixels(crops):
    """Sub-pixels in raster order, each to be told from those before it."""
    y = crops.reshape(len(crops), -1).astype(np.int32)
    x = np.pad(y[:, :-1], ((0, 0), (1, 0)))
    return x, y, np.ones_like(y, np.float32)
