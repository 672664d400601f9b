"""Predicts the next byte of the files of a package, one after another.

    python -m benchmarks.long_data.sources            # 2,048 bytes
    python -m benchmarks.long_data.sources --full     # 8,192 bytes; hours

Packages of the standard library are held out as wholes. Does the loss still fall where
more of the package has been seen? Bits are told by position.
"""

import functools

import numpy as np

from benchmarks.learning import tasks
from benchmarks.long_data import study

LENGTHS, FULL_LENGTHS = (2048,), (8192,)
WINDOW = 128
# A sequence is cut there, in parts of its length.
CUTS = 0, 1 / 8, 1 / 4, 1 / 2, 1


def main(argv=None):
    study.main(__doc__, "sources", make_tasks, LENGTHS, FULL_LENGTHS, argv)


def make_tasks(length, options):
    cuts = [round(cut * length) for cut in CUTS]
    draw = functools.partial(tasks.draw_sources, by_package=True)
    return [
        study.task(
            f"packages {length:,}",
            length,
            functools.partial(draw, "training"),
            functools.partial(held_out, length),
            shortest=length,
            window=min(WINDOW, length // 8),
            vocabulary_size=tasks.BYTES,
            measure="bits",
            parts=("all", *(f"{a:,} to {b:,}" for a, b in zip(cuts, cuts[1:]))),
            steps=600,
            learning_rate=2e-3,
        )
    ]


def held_out(length):
    """Batches with weights of all positions, and of those between two cuts each."""
    draw = functools.partial(tasks.draw_sources, "held out", length, by_package=True)
    positions = np.arange(length)
    cuts = [round(cut * length) for cut in CUTS]
    parts = [positions >= 0]
    parts += [(a <= positions) & (positions < b) for a, b in zip(cuts, cuts[1:])]
    parts = np.array(parts, np.float32)[:, np.newaxis]
    return [(x, y, parts * w) for x, y, w in tasks.fixed(draw, 2**17 // length, length)]


if __name__ == "__main__":
    main()
