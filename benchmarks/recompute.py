"""Measures the memory and time of a training step by what is computed again.

    python -m benchmarks.recompute                     # the table, some minutes
    python -m benchmarks.recompute --lengths 4096 65536

A causal `PerformerLM` of 4 blocks, width 128, 4 heads, 64 random features and a
vocabulary of 256 takes two steps on one sequence, each case in a process of its own: by
how much the second raised the peak of resident memory, and how long it took. Chips have
their own table: `python -m benchmarks.tpu.lengths`.
"""

import argparse

from benchmarks import alone, worker
from benchmarks.machine import describe

LENGTHS = [2**12, 2**14, 2**16]
MODES = {"nothing": None, "block": "block", "network": "network"}


def training_step(recompute, length, num_layers=4):
    """A training step in this process, which should be new.

    Args:
        recompute: as in `PerformerLM`.
        length: int, tokens of the sequence.
        num_layers: int.

    Returns:
        `(bytes, seconds)`: the largest resident memory during the second step beyond
        that before the first, and the time of the second.
    """
    import keras
    import numpy as np

    import keras_performer

    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=length,
        num_layers=num_layers,
        num_heads=4,
        hidden_dim=128,
        num_random_features=64,
        recompute=recompute,
        position_shape=(length // 64, 64),
        seed=0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    ids = np.random.default_rng(0).integers(0, 256, (1, length))
    before = worker.resident("VmRSS")
    model.train_on_batch(ids, ids)
    worker.forget_peak()
    seconds = worker.seconds(lambda: model.train_on_batch(ids, ids))
    return worker.resident("VmHWM") - before, seconds


def main(argv=None):
    """Reads the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    lengths = parser.parse_args(argv).lengths
    print(describe(threads=None))
    titles = (f"{length:,} tokens" for length in lengths)
    print("| computed again |", " | ".join(titles), "|")
    print("|---" * (len(lengths) + 1) + "|")
    for name, recompute in MODES.items():
        cells = []
        for length in lengths:
            peak, seconds = alone.call(training_step, recompute, length)
            cells.append(f"{peak / 2**20:,.0f} MB, {seconds:.2f} s")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
