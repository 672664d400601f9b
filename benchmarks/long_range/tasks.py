"""Tasks for the models, as published or smaller, for two cores."""

import dataclasses
import functools

import numpy as np

from benchmarks.learning import tasks as short
from benchmarks.learning.tasks import Task
from benchmarks.long_range import listops

# Tokens of a held-out batch, a size that exact attention can take.
TOKENS_AT_ONCE = 2**14
HELD_OUT = 1024
# Rows and columns of a digit, whose pixels are 0 to 16.
DIGIT = 8


@dataclasses.dataclass(frozen=True)
class LongTask(Task):
    """A task that asks for the class of a long sequence, or for a token per position.

    `warm_up_steps` are steps of pretraining on the task's inputs. If `padded`, token 0
    is padding. `joins_tokens` embeds a token with its predecessor, so that attention
    need not find it.
    """

    key_dim: int = 16
    num_layers: int = 2
    warm_up_steps: int = 0
    padded: bool = False
    joins_tokens: bool = False


def task(name, draws, length, vocabulary_size, num_classes, **more):
    """Makes a task; its window covers at most an eighth of the length.

    `draws` are two functions of a random generator and a batch size: for training data
    and for held-out data.
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
    """Returns held-out batches that are equal in every run."""
    return short.same_batches(draw, HELD_OUT, max(TOKENS_AT_ONCE // length, 1))


def list_operations(length, **options):
    """Prediction of the value of nested operations on digits."""
    draws = [functools.partial(listops.draw, length // 4, length)] * 2
    sizes = length, listops.VOCABULARY_SIZE, 10
    return task(f"ListOps {length:,}", draws, *sizes, padded=True, **options)


def digits(size, scale, **options):
    """Classification of a digit at a random position in an image, from pixels."""
    parts = "training", "held out"
    draws = [functools.partial(draw_digits, part, size, scale) for part in parts]
    sizes = size**2, 17, 10
    return task(f"digits {size**2:,}", draws, *sizes, grid=(size, size), **options)


def questions(length, num_pairs, **options):
    """Associative recall of `benchmarks.learning`: the value that followed a key."""
    window = length // 16
    return of_learning(short.recall(length, num_pairs, window=window, **options))


def sources(length, **options):
    """Prediction of the next byte of Python sources, as in `benchmarks.learning`."""
    # the default of models
    options["position_embedding"] = "rotary"
    task = short.sources(length, window=length // 16, **options)
    return dataclasses.replace(of_learning(task), hidden_dim=64)


def of_learning(task):
    """Returns a `LongTask` with questions at each position: needs no pretraining."""
    return LongTask(**vars(task), joins_tokens=True)


def draw_digits(part, size, scale, random, batch_size):
    """Samples pixels `(B, size * size)`, line by line, and digits `(B, 1)`.

    All positions where the digit fits into the image are equally likely; other pixels
    are 0. A pixel of the digit takes `scale` rows and columns. Every fifth image of
    scikit-learn is held out.
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
