"""Prints the memory that a training step of each file in `tpu_configs/` needs.

    python -m benchmarks.tpu.table                  # all, also with exact attention
    python -m benchmarks.tpu.table --names v5e-1 v5e-4

Takes about two minutes for each configuration, and writes `runs/tpu/table.json`.
Needs the environment of `make tpu-check`, but no TPU.
"""

import pathlib

from benchmarks import runner
from benchmarks.tpu import rows
from benchmarks.tpu.slices import SLICES

CONFIGS = runner.ROOT / "tpu_configs"
WRITTEN = pathlib.Path("runs/tpu/table.json")
HEADER = ["configuration", "attention", "tokens per step", "GiB", "compile seconds"]


def main(argv=None):
    options = runner.options(__doc__, argv, choices={"names": SLICES}, names=(*SLICES,))
    cases = [(name, exact) for name in options.names for exact in (False, True)]
    rows.print_table(HEADER, cells, compile_config, cases, WRITTEN)


def read(name):
    """Reads the `Config` of `tpu_configs/<name>.yaml`."""
    from examples.imagenet64 import config

    return config.parse(["--config", str(CONFIGS / f"{name}.yaml")])


def compile_config(name, exact):
    """Compiles a configuration, or its control with exact attention, into a row."""
    from benchmarks.tpu import steps

    config, slice_ = read(name), SLICES[name]
    tokens = config.batch_size * steps.image_model.LENGTH
    return {
        "configuration": name,
        "exact": exact,
        "replicas": slice_.replicas,
        "batch_size": config.batch_size,
        "tokens": tokens,
        **rows.measure(
            lambda: steps.training_step(config, slice_.replicas, exact), slice_
        ),
    }


def cells(row):
    """Formats a row for the table."""
    return [
        row["configuration"],
        "exact" if row["exact"] else "Performer",
        f"{row['tokens']:,}",
        rows.needed(row),
        f"{row['compile_seconds']:.0f}",
    ]


if __name__ == "__main__":
    main()
