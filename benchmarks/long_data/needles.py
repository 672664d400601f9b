"""Finds one key, and several, in Python sources: how far can an answer stand away?

python -m benchmarks.long_data.needles            # 1,024 tokens
python -m benchmarks.long_data.needles --full     # to 16,384; many hours
"""

import dataclasses
import functools

from benchmarks.learning import tasks
from benchmarks.long_data import study

LENGTHS, FULL_LENGTHS = (1024,), (1024, 4096, 16384)
NUM_KEYS, NUM_ASKED = (1, 8), 64
# Tokens of the first sequences, and of a batch.
SHORTEST, TOKENS = 256, 4096
WINDOW = 64


def main(argv=None):
    study.main(__doc__, "needles", make_tasks, LENGTHS, FULL_LENGTHS, argv)


def make_tasks(length, options):
    return [task_of(length, num_pairs) for num_pairs in NUM_KEYS]


def task_of(length, num_pairs):
    drawn = functools.partial(draw, num_pairs)
    task = tasks.needle(
        length,
        num_pairs,
        in_text=True,
        window=min(WINDOW, length // 8),
        num_asked=NUM_ASKED,
        steps=800,
        batch_size=max(1, TOKENS // length),
        learning_rate=2e-3,
        position_embedding="rotary",
    )
    shorter = study.shorter(drawn, length, SHORTEST, TOKENS)
    return dataclasses.replace(task, shorter=shorter)


def draw(num_pairs, length, *batch):
    return tasks.draw_needle(length, num_pairs, NUM_ASKED, "training", *batch)


if __name__ == "__main__":
    main()
