"""Finds one key, and several, in Python sources: how far can an answer stand away?

python -m benchmarks.long_data.needles            # 1,024 tokens
python -m benchmarks.long_data.needles --full     # to 16,384; many hours
"""

from benchmarks.learning import tasks
from benchmarks.long_data import study

LENGTHS, FULL_LENGTHS = (1024,), (1024, 4096, 16384)
NUM_KEYS = 1, 8
# Of a batch.
TOKENS = 8192
WINDOW = 64


def main(argv=None):
    study.main(__doc__, "needles", make_tasks, LENGTHS, FULL_LENGTHS, argv)


def make_tasks(length, options):
    return [
        tasks.needle(
            length,
            num_pairs,
            in_text=True,
            window=min(WINDOW, length // 8),
            steps=1200,
            batch_size=max(1, TOKENS // length),
            learning_rate=2e-3,
            position_embedding="rotary",
        )
        for num_pairs in NUM_KEYS
    ]


if __name__ == "__main__":
    main()
