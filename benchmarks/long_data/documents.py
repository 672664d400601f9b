"""Answers eight questions about a long document: `examples.documents`, read to its end.

    python -m benchmarks.long_data.documents          # 2,048 words
    python -m benchmarks.long_data.documents --full   # to 16,384 words; hours

The questions stand at the end, so that a causal model can answer them.
"""

import functools

import numpy as np

from benchmarks.learning import tasks
from benchmarks.long_data import study
from examples.documents import NAMES, PLACES, WINDOW, Library

LENGTHS, FULL_LENGTHS = (2048,), (2048, 16384)


def main(argv=None):
    study.main(__doc__, "documents", make_tasks, LENGTHS, FULL_LENGTHS, argv)


def make_tasks(length):
    training, held_out = (functools.partial(draw, part) for part in (False, True))
    return [
        study.task(
            f"documents {length:,}",
            length,
            training,
            tasks.held_out(held_out, length),
            shortest=256,
            window=WINDOW,
            vocabulary_size=len(library().ids),
            measure="accuracy",
            enough=tasks.ENOUGH,
            steps=600,
            learning_rate=4e-3,
        )
    ]


def draw(held_out, length, random, batch_size):
    """Documents whose last words are questions; each question mark is answered."""
    seed = random.integers(2**31)
    documents, answers = library().documents(batch_size, length, seed, held_out)
    asked = 2 * len(NAMES)
    x = np.roll(documents, -asked, 1).astype(np.int32)
    y, w = np.zeros_like(x), np.zeros(x.shape, np.float32)
    places = np.array([library().ids[place] for place in PLACES])
    y[:, 1 - asked :: 2], w[:, 1 - asked :: 2] = places[answers], 1
    return x, y, w


@functools.cache
def library():
    return Library()


if __name__ == "__main__":
    main()
