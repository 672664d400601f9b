"""Pixels of digits, enlarged, somewhere on an empty canvas."""

import functools

import numpy as np

from benchmarks.learning.real_tasks import read_digits, split_digits

# Values of pixels are 0 to 16; rows and columns of a digit.
VOCABULARY_SIZE = 17
DIGIT = 8


def draw_digits(part, size, scale, random, batch_size):
    """Which digit do these pixels show, read line by line?

    Every place of the canvas that holds the whole digit is equally likely; the rest of
    the canvas is 0. Every fifth image of scikit-learn's is held out.

    Args:
        part: str, "training" or "held out".
        size: int, rows and columns of the canvas.
        scale: int, how many rows and columns of the canvas a pixel of the digit takes.
        random: `np.random.Generator`.
        batch_size: int B.

    Returns:
        Inputs of shape `(B, size * size)`, digits `(B, 1)`, ones `(B, 1)`.
    """
    room = size - DIGIT * scale
    if scale < 1 or room < 0:
        raise ValueError(
            f"size must be at least {DIGIT} * scale, and scale at least 1, so that the "
            f"digit is on the canvas. Received: size={size}, scale={scale}"
        )
    chosen = random.choice(indices_of(part), batch_size)
    digits = np.kron(read_digits().images[chosen], np.ones((1, scale, scale)))
    canvas = np.zeros((batch_size, size, size), np.int32)
    tops, lefts = random.integers(room + 1, size=(2, batch_size))
    end = DIGIT * scale
    for image, digit, top, left in zip(canvas, digits, tops, lefts):
        image[top : top + end, left : left + end] = digit
    y = read_digits().target[chosen][:, np.newaxis].astype(np.int32)
    return canvas.reshape(batch_size, -1), y, np.ones_like(y, np.float32)


@functools.cache
def indices_of(part):
    training, held_out = split_digits(fold=0, num_folds=5)
    return {"training": training, "held out": held_out}[part]
