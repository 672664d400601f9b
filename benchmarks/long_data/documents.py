"""Answers eight questions about a long document: `examples.documents`, read to its end.

    python -m benchmarks.long_data.documents          # 2,048 words
    python -m benchmarks.long_data.documents --full   # to 16,384 words; hours

The questions stand at the end, so that a causal model can answer them.
"""

import functools

import numpy as np

from benchmarks.long_data import study
from examples.documents import NAMES, PLACES, WINDOW, Library

FULL_LENGTHS = 2048, 16384
library = functools.cache(Library)


def main(argv=None):
    study.main(__doc__, "documents", make_tasks, FULL_LENGTHS, argv)


def make_tasks(length):
    return [
        study.task(
            f"documents {length:,}",
            length,
            draw,
            window=WINDOW,
            vocabulary_size=len(library().ids),
            steps=600,
            learning_rate=4e-3,
        )
    ]


def draw(part, length, random, batch_size):
    """Documents whose last words are questions; each question mark is answered."""
    seed, held_out = random.integers(2**31), part == "held out"
    documents, answers = library().documents(batch_size, length, seed, held_out)
    asked = 2 * len(NAMES)
    x = np.roll(documents, -asked, 1).astype(np.int32)
    y, w = np.zeros_like(x), np.zeros(x.shape, np.float32)
    places = np.array([library().ids[place] for place in PLACES])
    y[:, 1 - asked :: 2], w[:, 1 - asked :: 2] = places[answers], 1
    return x, y, w


if __name__ == "__main__":
    main()
