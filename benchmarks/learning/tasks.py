"""What the models are to learn, first part: symbols to be found again.

Each task draws batches `(inputs, targets, weights)` of shape `(B, L)`, weights 0 where
nothing is asked; a class of a whole sequence is asked once, `(B, 1)`.
"""

import dataclasses
import functools
import math
import typing

import numpy as np

# Of recall and needle: ids of keys and of values, and of what stands between them.
KEYS, VALUES, FILLER = 64, 64, 64
# Of the needle, ids of keys and as many of values.
NEEDLES = 32
# Recall and needle are learned where so many held-out questions are answered.
ENOUGH = 0.995
# Of a held-out batch.
TOKENS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True)
class Task:
    """One thing to learn; picklable, as workers are sent it.

    Attributes:
        name: str.
        length: int L.
        window: int W of the rows with a window; a query sees L / 8 keys of it at most.
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
        position_embedding: "learned" or "rotary", as in `PerformerLM`.
        enough: float, the held-out accuracy at which training ends, or `None`.
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
    position_embedding: typing.Literal["learned", "rotary"] = "learned"
    enough: float | None = None

    def __post_init__(self):
        # classes are read from whole sequences: their windows look to both sides
        seen = 2 * self.window - 1 if self.num_classes else self.window
        if 8 * seen > self.length:
            raise ValueError(
                f"The window of {self.name!r} must cover at most an eighth of its "
                f"{self.length} places. Received: window={self.window}"
            )


def with_rotary(task):
    """The same to be learned with rotary positions."""
    return dataclasses.replace(
        task, name=f"{task.name}, rotary", position_embedding="rotary"
    )


def recall(length, num_pairs, **options):
    """Multi-query associative recall: pairs first, then some of their keys.

    Arora et al. 2023, Zoology, arXiv 2312.04927, made smaller.
    """
    draw = functools.partial(draw_recall, length, num_pairs)
    return Task(
        name=f"recall {length:,}",
        length=length,
        vocabulary_size=1 + KEYS + VALUES,
        draw=draw,
        held_out=functools.partial(fixed, draw, 48, length),
        measure="accuracy",
        hidden_dim=64,
        enough=ENOUGH,
        **options,
    )


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


def needle(length, num_pairs=8, num_asked=64, **options):
    """A few pairs at random places of random tokens, asked for at the end."""
    draw = functools.partial(draw_needle, length, num_pairs, num_asked)
    return Task(
        name=f"needle {length:,}",
        length=length,
        vocabulary_size=FILLER + 2 * NEEDLES,
        draw=draw,
        held_out=functools.partial(fixed, draw, 64, length),
        measure="accuracy",
        hidden_dim=64,
        enough=ENOUGH,
        **options,
    )


def draw_needle(length, num_pairs, num_asked, random, batch_size):
    x = random.integers(FILLER, size=(batch_size, length)).astype(np.int32)
    y = np.zeros((batch_size, length), np.int32)
    w = np.zeros((batch_size, length), np.float32)
    for row in range(batch_size):
        key = FILLER + random.permutation(NEEDLES)[:num_pairs]
        value = FILLER + NEEDLES + random.integers(NEEDLES, size=num_pairs)
        places = 2 * random.permutation((length - num_asked) // 2)[:num_pairs]
        x[row, places], x[row, places + 1] = key, value
        asked = random.integers(num_pairs, size=num_asked)
        x[row, -num_asked:], y[row, -num_asked:] = key[asked], value[asked]
        w[row, -num_asked:] = 1
    return x, y, w


def fixed(draw, num_examples, length):
    """Batches that are the same in every run, as long as exact attention can bear."""
    return same_batches(draw, num_examples, min(16, TOKENS_AT_ONCE // length))


def same_batches(draw, num_examples, batch_size):
    """As many batches as that many examples fill, the same in every run."""
    random = np.random.default_rng(12345)
    return [
        draw(random, batch_size) for _ in range(math.ceil(num_examples / batch_size))
    ]
