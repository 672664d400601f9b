"""Makes tables from the results of `benchmarks/gpu/run.py`.

    python -m benchmarks.gpu.report [--results benchmarks/results/gpu]

Reads `layer.json` and `numbers.json` in the folder, and writes `tables.md` there.
"""

import statistics

from benchmarks import runner
from benchmarks.gpu import cases
from benchmarks.long_range import models
from benchmarks.tables import NOTHING, table

RESULTS = runner.RESULTS / "gpu"
NAMES = {
    "Performer": "Performer",
    models.PERFORMER: "with `exact_window=64`",
    models.WINDOW: "local attention",
    models.EXACT: "exact, Keras",
    cases.FUSED: "exact, fused by cuDNN",
}
PRECISIONS = {
    cases.SINGLE[0]: "float32",
    cases.SINGLE[1]: "TensorFloat-32",
    cases.HALF: "`mixed_bfloat16`",
}
# Blocks of `cases.SMALL`, by the device that sets the block sizes.
BLOCKS = {"CPU": "several blocks", "GPU": "one block"}
# Texts above tables.
TIMES = """## Milliseconds of a training step, {form}

`mixed_bfloat16`. "exact, fused" is a layer of JAX with cuDNN's attention, which
TensorFlow does not offer; Keras has such attention on its other backends."""
MEMORY = """## Memory of a training step in MiB, {form}

Beside input, weights and gradients, as the compiler planned it."""


def main(argv=None):
    folder = runner.options(__doc__, argv, results=RESULTS).results
    layer, numbers = (
        runner.read(folder / f"{kind}.json") for kind in ("layer", "numbers")
    )
    parts = [
        heading(layer),
        *(by_size(layer, causal, milliseconds, TIMES) for causal in (False, True)),
        *(by_size(layer, causal, mebibytes, MEMORY) for causal in (False, True)),
        precision(layer),
        errors(numbers),
    ]
    runner.write_page(folder, parts)


def heading(results):
    rate = 1e-12 * results["matmul_flops"]
    return f"""# Layers on a GPU

{results["device"]}, {results["date"]}, one run. Lowered by TensorFlow
{results["tensorflow"]} with Keras {results["keras"]} on a machine without a GPU
(`python -m benchmarks.gpu.programs`), compiled and run by XLA as JAX {results["jax"]}
brings it (`benchmarks/gpu/run.py`). TensorFlow did not run on the GPU: what its own
runtime adds, and graphs that XLA does not compile, were not measured. A product of
two matrices of 8,192 in bfloat16 reached {rate:.0f} TFLOP/s.

The layer has 8 heads of 64, 256 random features, a width of 512. A step is the
gradients of its input and of all its weights. Medians of five rounds of up to 20
calls; rounds of a row differ by at most {100 * spread(results):.0f} %."""


def spread(results):
    """Returns the largest range of a row's rounds, as a share of the median."""
    return max(
        (max(row["seconds"]) - min(row["seconds"])) / statistics.median(row["seconds"])
        for row in results["programs"]
        if "seconds" in row
    )


def found(results, row, causal, size, precision=cases.HALF, blocks="GPU"):
    """Returns the row of a case; an empty dict if it was not measured."""
    batch, length = size
    sizes = {**cases.SIZES, "batch": batch, "length": length}
    case = {**cases.case("layer", row, causal, *precision, **sizes), "blocks": blocks}
    fits = (x for x in results["programs"] if case.items() <= x.items())
    return next(fits, {})


def milliseconds(row):
    if "seconds" not in row:
        return row.get("error", NOTHING)
    milliseconds = 1e3 * statistics.median(row["seconds"])
    digits = max(2 - len(str(int(milliseconds))) + 1, 0)
    return f"{milliseconds:,.{digits}f}"


def mebibytes(row):
    if "seconds" not in row:
        return row.get("error", NOTHING)
    return f"{row['temporary_bytes'] / 2**20:,.0f}"


def by_size(results, causal, cell, text):
    """Returns a text, and a table with `cell` of each row for all sizes."""
    lines = []
    for size in cases.ALL:
        cells = [cell(found(results, row, causal, size)) for row in NAMES]
        lines.append([named(size), *cells])
    header = ["sequences x tokens", *NAMES.values()]
    form = "causal" if causal else "attention to both sides"
    return f"{text.format(form=form)}\n\n{table(header, lines)}"


def named(size):
    batch, length = size
    return f"{batch} x {length:,}"


def precision(results):
    columns = {
        "`mixed_bfloat16`": [cases.HALF],
        "with blocks as on a CPU": [cases.HALF, "CPU"],
        "float32, products in TensorFloat-32 (TensorFlow's default)": [cases.SINGLE[1]],
        "float32": [cases.SINGLE[0]],
    }
    lines = []
    for causal in (False, True):
        for size in cases.SOME:
            of = results, "Performer", causal, size
            cells = [milliseconds(found(*of, *given)) for given in columns.values()]
            lines.append(["causal" if causal else "both sides", named(size), *cells])
    header = ["", "sequences x tokens", *columns]
    return f"""## Milliseconds by precision, and by the size of blocks

{table(header, lines)}"""


def errors(results):
    """Returns a section: a line for each layer and form, a column per precision."""
    lines = {}
    for row in results["programs"]:
        line = lines.setdefault((row["row"], row["form"]), {})
        both = [row.get(f"{of}_error") for of in ("output", "gradient")]
        kind = PRECISIONS[row["policy"], row["precision"]]
        line[kind] = row.get("error") or " / ".join(f"{x:.1e}" for x in both)
    cells = [
        [*layer, *(line.get(kind, NOTHING) for kind in PRECISIONS.values())]
        for layer, line in lines.items()
    ]
    sizes = {row["blocks"] for row in results["programs"]}
    return f"""## Errors of outputs / of all gradients

The size of the difference from the same layer in float64 on a CPU, with the same
weights, as a share of its size. 600 tokens, 2 heads of 16, in
{" or ".join(BLOCKS[size] for size in sorted(sizes))}; names are those of
[the long-range tasks](../long_range/tables.md). Compiled with
`XLA_FLAGS="--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"`, which takes
seconds for what takes a minute otherwise. Reformer in bfloat16 puts some tokens into
other buckets.

{table(["", "", *PRECISIONS.values()], cells)}"""


if __name__ == "__main__":
    main()
