"""Finds one key, and several, in Python sources: how far can an answer stand away?

python -m benchmarks.long_data.needles            # 1,024 tokens
python -m benchmarks.long_data.needles --full     # to 16,384; many hours
"""

import functools

from benchmarks.learning import tasks
from benchmarks.long_data import study

FULL_LENGTHS = 1024, 4096, 16384
NUM_KEYS = 1, 8


def main(argv=None):
    study.main(__doc__, "needles", make_tasks, FULL_LENGTHS, argv)


def make_tasks(length):
    return [
        study.task(
            f"needle {length:,} in text, {num_pairs} key{'s' * (num_pairs > 1)}",
            length,
            functools.partial(tasks.draw_needle, num_pairs),
            vocabulary_size=tasks.BYTES + 2 * tasks.NEEDLES,
            steps=800,
            learning_rate=2e-3,
        )
        for num_pairs in NUM_KEYS
    ]


if __name__ == "__main__":
    main()
