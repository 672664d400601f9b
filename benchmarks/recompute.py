"""Measures memory and time of a training step for each option of recompute.

    python -m benchmarks.recompute                     # the table, some minutes
    python -m benchmarks.recompute --lengths 4096 65536
    python -m benchmarks.recompute --depths 2 4 8      # plain or reversible blocks

A causal `PerformerLM` of 4 blocks, width 128, 4 heads, 64 random features and a
vocabulary of 256 takes two steps on one sequence, each case in its own process. Prints
the rise of the peak of resident memory by the second step, and its time. `--depths`
measures blocks without a model: Reformer's attention of this width on 4,096 tokens, in
a sequence of blocks or in one `ReversibleBlock`, with and without XLA. It prints the
rise of memory and the time of a third step. TPUs have their own table:
`python -m benchmarks.tpu.lengths`.
"""

import keras
import numpy as np

import keras_performer
from benchmarks import runner, worker
from benchmarks.tables import table
from keras_performer import layers, zoo

LENGTH_OF_BLOCKS, WIDTH, HEADS = 2**12, 128, 4
MODES = {"nothing": (None,), "block": ("block",), "network": ("network",)}
# Blocks: whether they are reversible, and whether XLA compiles them.
BLOCKS = {
    "blocks in a row": (False, False),
    "`ReversibleBlock`": (True, False),
    "blocks in a row, XLA": (False, True),
    "`ReversibleBlock`, XLA": (True, True),
}


def main(argv=None):
    options = runner.options(__doc__, argv, lengths=(2**12, 2**14, 2**16), depths=[int])
    print(runner.describe(threads=None))
    of_lengths = training_step, MODES, options.lengths, runner.with_plain_memory
    of_depths = step_of_blocks, BLOCKS, options.depths, runner.give_back
    step, rows, sizes, start = of_depths if options.depths else of_lengths
    lines = []
    for name, given in rows.items():
        lines.append([name])
        for size in sizes:
            peak, seconds = runner.in_new_process(step, *given, size, start=start)
            lines[-1].append(f"{peak / 2**20:,.0f} MB, {seconds:.2f} s")
        print(*lines[-1], flush=True)
    unit = "blocks" if options.depths else "tokens"
    print(table(["", *(f"{size:,} {unit}" for size in sizes)], lines))


def training_step(recompute, length, num_layers=4):
    """Measures a second training step in this process, which should be new.

    Returns bytes by which the peak of resident memory during this step exceeds the
    memory before the first step, and seconds.
    """
    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=length,
        num_layers=num_layers,
        num_heads=HEADS,
        hidden_dim=WIDTH,
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
    return worker.peak_and_seconds(lambda: model.train_on_batch(ids, ids), before)


def step_of_blocks(reversible, jit_compile, depth):
    """Measures a third training step of blocks: bytes above those before, seconds."""
    # 2 rounds of buckets with about 64 tokens
    attention = [
        zoo.ReformerAttention(HEADS, WIDTH // HEADS, num_hashes=2, seed=seed)
        for seed in range(depth)
    ]
    if reversible:
        blocks = [zoo.ReversibleBlock(attention, 4 * WIDTH)]
    else:
        blocks = [layers.PerformerBlock(one, 4 * WIDTH) for one in attention]
    model = keras.Sequential([keras.Input((LENGTH_OF_BLOCKS, WIDTH)), *blocks])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = keras.random.normal((1, LENGTH_OF_BLOCKS, WIDTH), seed=0)
    model.train_on_batch(x, x)
    model.train_on_batch(x, x)  # TensorFlow optimizes again
    return worker.peak_and_seconds(lambda: model.train_on_batch(x, x))


if __name__ == "__main__":
    main()
