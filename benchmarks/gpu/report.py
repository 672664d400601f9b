"""Writes tables of `layers.json` and `others.json`.

python -m benchmarks.gpu.report [--results benchmarks/results/gpu]
"""

from benchmarks import runner
from benchmarks.tables import NOTHING, table

RESULTS = runner.RESULTS / "gpu"
LAYERS = """## A training step of a layer

8 heads of size 64, 256 random features, a window of 64 tokens, width 512,
`mixed_bfloat16`; the gradients of the input and of all weights. "xla": XLA compiles the
whole step, as `fit` does by default on a GPU. "graph": XLA compiles attention alone.
Medians of five rounds of up to 20 calls; memory is the peak, with weights, input and
gradients. The first call includes tracing and compiling."""
OTHERS = """## Attention of other libraries

Forward and backward of attention alone, in bfloat16, without the four dense layers
around it: "exact" is PyTorch's fused attention, the rest are operations of
flash-linear-attention."""


def main(argv=None):
    folder = runner.options(__doc__, argv, results=RESULTS).results
    parts = ["# On a GPU"]
    for name, text, cells in (
        ("layers", LAYERS, of_layer),
        ("others", OTHERS, of_other),
    ):
        results = runner.read(folder / f"{name}.json")
        if not results.get("rows"):
            continue
        versions = (f"{k} {x}" for k, x in results.items() if k not in ("rows", "date"))
        lines = [cells(row) for row in results["rows"]]
        about = f"{text}\n\n{', '.join(versions)}."
        parts.append(f"{about}\n\n{table([*lines[0]], [[*x.values()] for x in lines])}")
    runner.write_page(folder, parts)


def of_layer(row):
    return {
        "attention": row["row"] + (f", chunk {row['chunk']}" if "chunk" in row else ""),
        "form": row["form"],
        "sequences x tokens": size_of(row),
        "mode": row["mode"],
        **costs(row),
        "first call, s": row.get("first_call", NOTHING),
    }


def of_other(row):
    return {"attention": row["row"], "sequences x tokens": size_of(row), **costs(row)}


def size_of(row):
    return f"{row['batch']} x {row['length']:,}"


def costs(row):
    peak = row.get("peak_bytes")
    return {
        "ms": row.get("error") or f"{row['ms']:.3g}",
        "MiB": NOTHING if peak is None else f"{peak / 2**20:,.0f}",
    }


if __name__ == "__main__":
    main()
