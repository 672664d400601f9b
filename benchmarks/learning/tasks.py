"""Tasks: recall of symbols, source code, and handwritten digits.

Each task samples batches `(inputs, targets, weights)` of shape `(B, L)`. Weights are 0
at positions without a question. For a class of the sequence, targets are `(B, 1)`.
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

# Number of ids for keys and values in recall, and for random tokens in needle.
KEYS, VALUES, FILLER = 64, 64, 64
# Vocabulary size of text.
BYTES = 256
# Number of ids for keys in needle, and for values; number of questions.
NEEDLES, NUM_ASKED = 32, 64
# Training on recall and needle ends at this held-out accuracy.
ENOUGH = 0.995
# Maximum tokens of a held-out batch, and of all held-out sequences.
TOKENS_AT_ONCE, HELD_OUT_TOKENS = 8192, 2**19
# Rows and columns of a digit; held-out images with a digit anywhere, and in a batch.
DIGIT, HELD_OUT_DIGITS, DIGITS_AT_ONCE = 8, 1024, 113
# Folders of installed packages, and of tests of the standard library.
NOT_SOURCES = {"site-packages", "test", "tests", "idle_test"}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task for models to learn; picklable, since it is sent to workers.

    The window covers at most L / 8 keys of a query. `draw` is a function of a random
    generator and a batch size, `held_out` returns a list of batches that are not used
    in training. Without `num_classes`, each position predicts a token. Without `grid`,
    positions are one-dimensional. Without `position_embedding`, `PerformerLM` chooses.
    Training ends at the held-out accuracy `enough`. With `decay` the learning rate
    falls linearly to 0 after `steps`. With `has_reader` the logits are from
    `models.Reader`. Training begins with the stages `shorter`: tuples of a draw
    function for shorter sequences, a batch size, and the share of the steps at which
    the stage ends.
    """

    name: str
    length: int
    window: int
    vocabulary_size: int
    draw: typing.Callable
    held_out: typing.Callable
    measure: typing.Literal["accuracy", "bits"]
    steps: int
    batch_size: int
    hidden_dim: int
    learning_rate: float
    num_classes: int | None = None
    grid: tuple[int, ...] | None = None
    position_embedding: typing.Literal["learned", "rotary"] | None = "learned"
    decay: bool = False
    has_reader: bool = False
    enough: float | None = None
    shorter: tuple[tuple[typing.Callable, int, float], ...] = ()

    def __post_init__(self):
        # models that predict a class are bidirectional, so windows have two sides
        seen = 2 * self.window - 1 if self.num_classes else self.window
        if 8 * seen > self.length:
            raise ValueError(
                f"The window of {self.name!r} must cover at most an eighth of its "
                f"{self.length} places. Received: window={self.window}"
            )

    def stages(self, steps):
        """Returns draw function, batch size and last step of each training stage."""
        stages = (*self.shorter, (self.draw, self.batch_size, 1))
        return [(draw, size, round(end * steps)) for draw, size, end in stages]


def with_rotary(task):
    """Returns the task with rotary positions."""
    return dataclasses.replace(
        task, name=f"{task.name}, rotary", position_embedding="rotary"
    )


def recall(length, num_pairs, **options):
    """Multi-query associative recall: pairs first, then some of their keys.

    This is a smaller form of Arora et al. 2023, Zoology, arXiv 2312.04927.
    """
    draw = functools.partial(draw_recall, length, num_pairs)
    held_out = functools.partial(fixed, draw, 48, length)
    sizes = dict(length=length, vocabulary_size=1 + KEYS + VALUES, hidden_dim=64)
    learned = dict(measure="accuracy", enough=ENOUGH)
    name = f"recall {length:,}"
    return Task(name, draw=draw, held_out=held_out, **sizes, **learned, **options)


def draw_recall(length, num_pairs, random, batch_size):
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


def needle(length, **options):
    """Recall of eight pairs at random positions among random tokens.

    Questions come at the end.
    """
    draw = functools.partial(draw_needle, 8, None)
    draws = dict(draw=functools.partial(draw, length), held_out=held_out(draw, length))
    sizes = dict(length=length, vocabulary_size=FILLER + 2 * NEEDLES, hidden_dim=64)
    learned = dict(measure="accuracy", enough=ENOUGH)
    return Task(f"needle {length:,}", **draws, **sizes, **learned, **options)


def draw_needle(num_pairs, part, length, random, batch_size):
    """Samples pairs and questions in random tokens, or in a part of the sources."""
    if part is None:
        filler = FILLER
        x = random.integers(FILLER, size=(batch_size, length)).astype(np.int32)
    else:
        filler = BYTES
        x, _, _ = draw_sources(part, length, random, batch_size)
    y = np.zeros((batch_size, length), np.int32)
    w = np.zeros((batch_size, length), np.float32)
    for row in range(batch_size):
        key = filler + random.permutation(NEEDLES)[:num_pairs]
        value = filler + NEEDLES + random.integers(NEEDLES, size=num_pairs)
        places = 2 * random.permutation((length - NUM_ASKED) // 2)[:num_pairs]
        x[row, places], x[row, places + 1] = key, value
        asked = random.integers(num_pairs, size=NUM_ASKED)
        x[row, -NUM_ASKED:], y[row, -NUM_ASKED:] = key[asked], value[asked]
        w[row, -NUM_ASKED:] = 1
    return x, y, w


def held_out(draw, length):
    """Returns `Task.held_out` of 64 sequences, or fewer above 8,192 tokens.

    `draw` is a function of a length, a random generator and a batch size.
    """
    number = min(64, HELD_OUT_TOKENS // length)
    return functools.partial(fixed, functools.partial(draw, length), number, length)


def fixed(draw, num_examples, length):
    """Returns batches, equal in every run, of a size that exact attention can take."""
    return same_batches(draw, num_examples, min(16, max(1, TOKENS_AT_ONCE // length)))


def same_batches(draw, num_examples, batch_size):
    """Returns batches with this many examples, equal in every run."""
    random = np.random.default_rng(12345)
    return [
        draw(random, batch_size) for _ in range(math.ceil(num_examples / batch_size))
    ]


def sources(length, **options):
    """Prediction of the next byte in the standard library; holds out 1 file in 20."""
    draw, held_out = (
        functools.partial(draw_sources, part, length)
        for part in ("training", "held out")
    )
    held_out = functools.partial(fixed, held_out, 2**16 // length, length)
    sizes = dict(length=length, vocabulary_size=BYTES, hidden_dim=128, measure="bits")
    return Task(f"bytes {length:,}", draw=draw, held_out=held_out, **sizes, **options)


def draw_sources(part, length, random, batch_size):
    text = read_sources()[part]
    starts = random.integers(len(text) - length - 1, size=batch_size)
    cut = text[starts[:, np.newaxis] + np.arange(length + 1)].astype(np.int32)
    return cut[:, :-1], cut[:, 1:], np.ones((batch_size, length), np.float32)


@functools.cache
def read_sources():
    """Returns bytes of the standard library, "training" and "held out", without tests.

    Holds out one in twenty files.
    """
    parts = {"training": [], "held out": []}
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not NOT_SOURCES & set(name.parts):
            digest = hashlib.md5(str(name).encode(), usedforsecurity=False).digest()
            part = "training" if digest[0] % 20 else "held out"
            parts[part].append(path.read_bytes())
    return {
        part: np.frombuffer(b"\n".join(files), np.uint8)
        for part, files in parts.items()
    }


@functools.cache
def read_digits(part):
    """Returns images `(N, 64)` and digits `(N,)`; holds out every fifth image."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(99).permutation(len(digits))
    held_out = order[::5]
    chosen = held_out if part == "held out" else np.setdiff1d(order, held_out)
    return images[chosen].astype(np.int32), digits[chosen].astype(np.int32)


def digits_anywhere(size, **options):
    """Classification of a digit at a random position in an image, from pixels."""
    draw, held_out = (
        functools.partial(draw_digits_anywhere, part, size)
        for part in ("training", "held out")
    )
    sizes = dict(length=size**2, window=size**2 // 16, grid=(size, size))
    sizes |= dict(vocabulary_size=17, hidden_dim=64)
    return Task(
        f"digits {size**2:,}",
        draw=draw,
        held_out=functools.partial(
            same_batches, held_out, HELD_OUT_DIGITS, DIGITS_AT_ONCE
        ),
        num_classes=10,
        measure="accuracy",
        **sizes,
        **options,
    )


def draw_digits_anywhere(part, size, random, batch_size):
    """Samples pixels `(B, size * size)`, line by line, and digits `(B, 1)`.

    All positions where the digit fits into the image are equally likely; other pixels
    are 0.
    """
    images, digits = read_digits(part)
    chosen = random.integers(len(digits), size=batch_size)
    canvas = np.zeros((batch_size, size, size), np.int32)
    tops, lefts = random.integers(size - DIGIT + 1, size=(2, batch_size))
    for large, image, top, left in zip(canvas, images[chosen], tops, lefts):
        large[top : top + DIGIT, left : left + DIGIT] = image.reshape(DIGIT, DIGIT)
    y = digits[chosen, np.newaxis]
    return canvas.reshape(batch_size, -1), y, np.ones_like(y, np.float32)
