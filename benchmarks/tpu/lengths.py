"""Prints the longest sequences to train on, for each `recompute`.

    python -m benchmarks.tpu.lengths                        # the table of the README
    python -m benchmarks.tpu.lengths --recompute block --log2-lengths 18 19 20
    python -m benchmarks.tpu.lengths --recompute exact --log2-lengths 13 14
    python -m benchmarks.tpu.lengths --recompute block --log2-lengths 24 --slice v5e-16

The model is the regular one of arXiv 2009.14794 (8 heads, 6 layers, widths 512 and
2048) with 256 random features, a vocabulary of 256, mixed_bfloat16 and Adam, on one
sequence. For several chips `keras_performer.sequence_parallel` cuts the sequence. A row
takes one to five minutes; all are written to `runs/tpu/lengths.json`. Needs the
environment of `make tpu-check`, but no TPU.
"""

from benchmarks import runner
from benchmarks.tpu import rows, slices

SLICES = {**slices.SLICES, **slices.SLICES_OF_SEQUENCES}
# Lengths in the table by `recompute`: up to the longest that fits, and one more.
LOG2_LENGTHS = {
    "exact": (13, 14),
    "none": (13, 15, 16, 17),
    "block": (15, 18, 20, 21),
    "network": (15, 20, 22, 24, 25),
}
HEADER = ["tokens", "model", "GiB per chip", "lower seconds", "compile seconds"]


def main(argv=None):
    choices = {"recompute": LOG2_LENGTHS, "slice": SLICES}
    more = dict(recompute=(*LOG2_LENGTHS,), log2_lengths=[int], slice="v5e-1")
    more |= dict(output=runner.RUNS / "tpu/lengths.json")
    chosen = runner.options(__doc__, argv, choices, **more)
    cases = [
        (recompute, log2_length, chosen.slice)
        for recompute in chosen.recompute
        for log2_length in chosen.log2_lengths or LOG2_LENGTHS[recompute]
    ]
    rows.print_table(HEADER, cells, compile_length, cases, chosen.output)


def compile_length(recompute, log2_length, slice_name):
    """Compiles the step of one length; returns its row."""
    slice_ = SLICES[slice_name]
    return {
        "slice": slice_name,
        "recompute": recompute,
        "tokens": 2**log2_length,
        **rows.measure(
            lambda: training_step(recompute, log2_length, slice_.replicas), slice_
        ),
    }


def training_step(recompute, log2_length, replicas=1):
    """Returns StableHLO of a training step on one sequence, cut for the replicas."""
    import keras

    import keras_performer
    from benchmarks.tpu import steps
    from benchmarks.tpu.replicas import Replicas
    from keras_performer.ops.slices import cut_for

    keras.config.set_dtype_policy("mixed_bfloat16")
    option = {"recompute": None if recompute == "none" else recompute}
    option["exact_window"] = None
    if recompute == "exact":
        option = {"attention": "exact"}
    strategy = Replicas(replicas)
    cut_for(strategy)  # one replica's slice is traced, so there is no data to cut
    half = log2_length // 2
    with strategy.scope():
        model = keras_performer.PerformerLM(
            vocabulary_size=256,
            max_length=2**log2_length,
            num_layers=6,
            num_heads=8,
            hidden_dim=512,
            intermediate_dim=2048,
            # learned positions of rows and columns, as a full table would fill the chip
            position_shape=(2**half, 2 ** (log2_length - half)),
            forget_gate=False,
            seed=0,
            **option,
        )
        model.compile(
            keras.optimizers.Adam(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return steps.lower_step(model, strategy, 1, 2**log2_length // replicas)


def cells(row):
    """Formats a row for the table."""
    return [
        f"2^{row['tokens'].bit_length() - 1}",
        row["recompute"],
        rows.needed(row),
        f"{row['lower_seconds']:.0f}",
        f"{row['compile_seconds']:.0f}",
    ]


if __name__ == "__main__":
    main()
