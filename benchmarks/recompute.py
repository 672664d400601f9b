"""Measures memory and time of a training step for each option of recompute.

    python -m benchmarks.recompute                     # the table, some minutes
    python -m benchmarks.recompute --lengths 4096 65536

A causal `PerformerLM` of 4 blocks, width 128, 4 heads, 64 random features and a
vocabulary of 256 takes two steps on one sequence, each case in its own process. Prints
the rise of the peak of resident memory by the second step, and its time. TPUs have
their own table: `python -m benchmarks.tpu.lengths`.
"""

import functools

import keras
import numpy as np

import keras_performer
from benchmarks import runner, worker
from benchmarks.tables import table

MODES = {"nothing": None, "block": "block", "network": "network"}


def main(argv=None):
    options = runner.options(__doc__, argv, lengths=(2**12, 2**14, 2**16))
    print(runner.describe(threads=None))
    lines = []
    for name, recompute in MODES.items():
        lines.append([name])
        for length in options.lengths:
            plain = runner.with_plain_memory
            measured = runner.in_new_process(
                training_step, recompute, length, start=plain
            )
            lines[-1].append("{:,.0f} MB, {:.2f} s".format(*measured))
        print(*lines[-1], flush=True)
    print(table(["", *(f"{length:,} tokens" for length in options.lengths)], lines))


def training_step(recompute, length):
    """Measures a second training step in this process, which should be new.

    Returns MB by which the peak of resident memory during this step exceeds the
    memory before the first step, and seconds.
    """
    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=length,
        num_layers=4,
        num_heads=4,
        hidden_dim=128,
        num_random_features=64,
        exact_window=None,
        forget_gate=False,
        recompute=recompute,
        position_shape=(length // 64, 64),
        seed=0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    ids = np.random.default_rng(0).integers(0, 256, (1, length))
    before = worker.resident("VmRSS")
    model.train_on_batch(ids, ids)
    step = functools.partial(model.train_on_batch, ids, ids)
    peak, seconds = worker.peak_and_seconds(step, before)
    return peak / 2**20, seconds


if __name__ == "__main__":
    main()
