"""Tasks for the models, as published or smaller, for two cores."""

import functools

import numpy as np

from benchmarks.learning import tasks as short

# Tokens of a held-out batch, a size that exact attention can take.
TOKENS_AT_ONCE = 2**14
HELD_OUT = 1024
# Rows and columns of a digit, whose pixels are 0 to 16.
DIGIT = 8


def classes(name, training, held_out, length, vocabulary_size, **options):
    """Makes a task that asks for one of ten classes of a sequence.

    `training` and `held_out` are functions of a random generator and a batch size.
    """
    return short.Task(
        name=name,
        draw=training,
        held_out=functools.partial(fixed, held_out, length),
        length=length,
        vocabulary_size=vocabulary_size,
        num_classes=10,
        hidden_dim=64,
        measure="accuracy",
        **{"window": length // 16, **options},
    )


def fixed(draw, length):
    """Returns held-out batches that are equal in every run."""
    return short.same_batches(draw, HELD_OUT, max(TOKENS_AT_ONCE // length, 1))


def digits(size, **options):
    """Classification of a digit at a random position in an image, from pixels."""
    parts = "training", "held out"
    draws = (functools.partial(draw_digits, part, size) for part in parts)
    grid = {"grid": (size, size)}
    return classes(f"digits {size**2:,}", *draws, size**2, 17, **grid, **options)


def draw_digits(part, size, random, batch_size):
    """Samples pixels `(B, size * size)`, line by line, and digits `(B, 1)`.

    All positions where the digit fits into the image are equally likely; other pixels
    are 0. Every fifth image of scikit-learn is held out.
    """
    room = size - DIGIT
    training, held_out = short.split_digits(fold=0)
    indices = training if part == "training" else held_out
    chosen = random.choice(indices, batch_size)
    digits = short.read_digits().images[chosen]
    canvas = np.zeros((batch_size, size, size), np.int32)
    tops, lefts = random.integers(room + 1, size=(2, batch_size))
    for image, digit, top, left in zip(canvas, digits, tops, lefts):
        image[top : top + DIGIT, left : left + DIGIT] = digit
    y = short.read_digits().target[chosen][:, np.newaxis].astype(np.int32)
    return canvas.reshape(batch_size, -1), y, np.ones_like(y, np.float32)
