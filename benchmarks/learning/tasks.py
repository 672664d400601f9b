"""What the models are to learn: tasks in which attention matters.

Each draws batches `(inputs, targets, weights)` of shape `(B, L)`, weights 0 where
nothing is asked; a class of a whole sequence is asked once, `(B, 1)`.
"""

import dataclasses
import functools
import hashlib
import math
import pathlib
import sysconfig
import typing

import numpy as np
from sklearn.datasets import load_digits

# Of recall and needle: ids of keys and of values, and of what stands between them.
KEYS, VALUES, FILLER = 64, 64, 64


@dataclasses.dataclass(frozen=True)
class Task:
    """One thing to learn.

    Attributes:
        name: str.
        length: int L.
        window: int W of the rows with a window, at most L / 8.
        vocabulary_size: int.
        draw: function of a random generator and a batch size that returns a batch.
        held_out: function that returns a list of batches that are not trained on.
        measure: "accuracy" or "bits", what the tables show.
        steps: int, optimizer steps.
        batch_size: int.
        hidden_dim: int, width of the model.
        learning_rate: float, recorded from an earlier sweep.
        num_classes: int, or `None` to predict a token at every place.
        grid: tuple of ints, positions, or `None` for a line.
    """

    name: str
    length: int
    window: int
    vocabulary_size: int
    draw: typing.Callable
    held_out: typing.Callable
    measure: str
    steps: int
    batch_size: int
    hidden_dim: int
    learning_rate: float
    num_classes: int | None = None
    grid: tuple[int, ...] | None = None


def recall(length, num_pairs, **options):
    """Multi-query associative recall: pairs first, then some of their keys.

    Arora et al. 2023, Zoology, arXiv 2312.04927, made smaller.
    """

    def draw(random, batch_size):
        x, y = np.zeros((2, batch_size, length), np.int32)
        w = np.zeros((batch_size, length), np.float32)
        pairs = 2 * num_pairs
        for row in range(batch_size):
            keys = 1 + random.permutation(KEYS)[:num_pairs]
            values = 1 + KEYS + random.integers(VALUES, size=num_pairs)
            x[row, 0:pairs:2], x[row, 1:pairs:2] = keys, values
            asked = random.integers(num_pairs, size=length - pairs)
            asks = random.random(length - pairs) < 0.5
            x[row, pairs:] = np.where(asks, keys[asked], 0)
            y[row, pairs:], w[row, pairs:] = values[asked], asks
        return x, y, w

    return Task(
        name=f"recall {length:,}",
        length=length,
        vocabulary_size=1 + KEYS + VALUES,
        draw=draw,
        held_out=functools.partial(fixed, draw, 48),
        measure="accuracy",
        hidden_dim=64,
        **options,
    )


def needle(length, num_pairs=8, num_asked=64, **options):
    """A few pairs at random places of random tokens, asked for at the end."""
    keys, values = 32, 32

    def draw(random, batch_size):
        x = random.integers(FILLER, size=(batch_size, length)).astype(np.int32)
        y = np.zeros((batch_size, length), np.int32)
        w = np.zeros((batch_size, length), np.float32)
        for row in range(batch_size):
            key = FILLER + random.permutation(keys)[:num_pairs]
            value = FILLER + keys + random.integers(values, size=num_pairs)
            places = 2 * random.permutation((length - num_asked) // 2)[:num_pairs]
            x[row, places], x[row, places + 1] = key, value
            asked = random.integers(num_pairs, size=num_asked)
            x[row, -num_asked:], y[row, -num_asked:] = key[asked], value[asked]
            w[row, -num_asked:] = 1
        return x, y, w

    return Task(
        name=f"needle {length:,}",
        length=length,
        vocabulary_size=FILLER + keys + values,
        draw=draw,
        held_out=functools.partial(fixed, draw, 64),
        measure="accuracy",
        hidden_dim=64,
        **options,
    )


def sources(length, **options):
    """The next byte of the standard library; one file of twenty is held out."""

    def draw(random, batch_size, part="training"):
        text = read_sources()[part]
        starts = random.integers(len(text) - length - 1, size=batch_size)
        cut = text[starts[:, np.newaxis] + np.arange(length + 1)].astype(np.int32)
        return cut[:, :-1], cut[:, 1:], np.ones((batch_size, length), np.float32)

    return Task(
        name=f"bytes {length:,}",
        length=length,
        vocabulary_size=256,
        draw=draw,
        held_out=functools.partial(
            fixed, functools.partial(draw, part="held out"), 2**16 // length
        ),
        measure="bits",
        hidden_dim=128,
        **options,
    )


def digits(fold, num_folds=5, **options):
    """Which digit an image of 8 x 8 pixels shows; every fifth image is held out."""
    images = load_digits()
    order = np.random.default_rng(99).permutation(len(images.target))
    held_out = order[fold::num_folds]
    training = np.setdiff1d(order, held_out)

    def batch(indices):
        x = images.data[indices].astype(np.int32)
        y = images.target[indices][:, np.newaxis].astype(np.int32)
        return x, y, np.ones_like(y, np.float32)

    return Task(
        name="digits",
        length=64,
        vocabulary_size=17,
        draw=lambda random, batch_size: batch(random.choice(training, batch_size)),
        held_out=lambda: [batch(held_out)],
        measure="accuracy",
        hidden_dim=64,
        num_classes=10,
        grid=(8, 8),
        **options,
    )


def fixed(draw, num_examples, batch_size=16):
    """Batches that are the same in every run."""
    random = np.random.default_rng(12345)
    return [
        draw(random, batch_size) for _ in range(math.ceil(num_examples / batch_size))
    ]


@functools.cache
def read_sources():
    """Bytes of the standard library without its tests, "training" and "held out"."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    parts = {"training": [], "held out": []}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not {"site-packages", "test", "tests", "idle_test"} & set(name.parts):
            digest = hashlib.md5(str(name).encode(), usedforsecurity=False).digest()
            parts["training" if digest[0] % 20 else "held out"].append(
                path.read_bytes()
            )
    return {
        part: np.frombuffer(b"\n".join(files), np.uint8)
        for part, files in parts.items()
    }
