"""Tasks for the models to learn, small for two cores or as published."""

import dataclasses
import functools

import numpy as np

from benchmarks.learning import tasks as short
from benchmarks.learning.tasks import Task
from benchmarks.long_range import listops

# Of a held-out batch, which exact attention can bear.
TOKENS_AT_ONCE = 2**14
HELD_OUT = 1024
# Rows and columns of a digit, whose pixels are 0 to 16.
DIGIT = 8


@dataclasses.dataclass(frozen=True)
class LongTask(Task):
    """A class to be told from a long sequence, or without classes a token at a place.

    `warm_up_steps` are steps of a warm-up on the task's own inputs. Token 0 is padding
    where `padded`. With `joins_tokens` a token is read with the one before it, which no
    attention need spend its time to find.
    """

    key_dim: int = 16
    num_layers: int = 2
    warm_up_steps: int = 0
    padded: bool = False
    joins_tokens: bool = False


def task(name, draws, length, vocabulary_size, num_classes, **more):
    """A task; its window covers an eighth of the length or, of short ones, less.

    `draws` are two functions of a random generator and a batch size: of what is trained
    on, and of what is not.
    """
    training, held_out = draws
    return LongTask(
        name=name,
        draw=training,
        held_out=functools.partial(fixed, held_out, length),
        length=length,
        window=length // 16,
        vocabulary_size=vocabulary_size,
        num_classes=num_classes,
        measure="accuracy" if num_classes else "bits",
        **more,
    )


def fixed(draw, length):
    """Batches that are the same in every run."""
    return short.same_batches(draw, HELD_OUT, max(TOKENS_AT_ONCE // length, 1))


def list_operations(length, **options):
    """The value of nested operations on digits."""
    draws = [functools.partial(listops.draw, length // 4, length)] * 2
    sizes = length, listops.VOCABULARY_SIZE, 10
    return task(f"ListOps {length:,}", draws, *sizes, padded=True, **options)


def digits(size, scale, **options):
    """The digit that stands somewhere in an image, from its pixels."""
    parts = "training", "held out"
    draws = [functools.partial(draw_digits, part, size, scale) for part in parts]
    sizes = size**2, 17, 10
    return task(f"digits {size**2:,}", draws, *sizes, grid=(size, size), **options)


def questions(length, num_pairs, **options):
    """Associative recall of `benchmarks.learning`: the value beside a key, far back."""
    window = length // 16
    return of_learning(short.recall(length, num_pairs, window=window, **options))


def sources(length, **options):
    """The next byte of Python sources, of `benchmarks.learning`; rotary positions."""
    # as models have by default
    options["position_embedding"] = "rotary"
    task = short.sources(length, window=length // 16, **options)
    return dataclasses.replace(of_learning(task), hidden_dim=64)


def of_learning(task):
    """A task that asks for a token at each place, which is warm-up enough."""
    return LongTask(**vars(task), joins_tokens=True)


def draw_digits(part, size, scale, random, batch_size):
    """Draws pixels `(B, size * size)`, read line by line, and digits `(B, 1)`.

    Every place of the canvas that holds the whole digit is equally likely; the rest of
    the canvas is 0. A pixel of the digit takes `scale` rows and columns. Every fifth
    image of scikit-learn's is held out.
    """
    room = size - DIGIT * scale
    training, held_out = short.split_digits(fold=0, num_folds=5)
    indices = training if part == "training" else held_out
    chosen = random.choice(indices, batch_size)
    digits = np.kron(short.read_digits().images[chosen], np.ones((1, scale, scale)))
    canvas = np.zeros((batch_size, size, size), np.int32)
    tops, lefts = random.integers(room + 1, size=(2, batch_size))
    end = DIGIT * scale
    for image, digit, top, left in zip(canvas, digits, tops, lefts):
        image[top : top + end, left : left + end] = digit
    y = short.read_digits().target[chosen][:, np.newaxis].astype(np.int32)
    return canvas.reshape(batch_size, -1), y, np.ones_like(y, np.float32)
