"""Makes tables from the results of `make bench`.

    python -m benchmarks.report [--input runs/bench] [--output benchmarks/results]
        [--machine NAME]

Writes all tables as Markdown to DATE-NAME.md in the output folder; prints its path and
the first table. Never overwrites DATE-NAME.md: results are kept, and people add
comments to them.
"""

import re

from benchmarks import decoding, runner, tables
from benchmarks.measure import FORMS
from benchmarks.tables import NOTHING, by, table

# Names of contenders in tables.
NAMES = {
    "matmul": "product of 2,048^3",
    "softmax": "ours, softmax",
    "softmax, jit_compile=False": "ours, softmax, jit_compile=False",
    "softmax, jit_compile=True": "ours, softmax, jit_compile=True",
    "relu": "ours, relu",
    "favor+": "ours, favor+",
    "returns V": "X(OPT), returns V",
    "exact": "Keras MultiHeadAttention",
    "scaled_dot_product_attention": "PyTorch scaled_dot_product_attention",
}
# Columns of the first table, which `benchmarks/README.md` shows.
OVERVIEW = (
    "softmax",
    "exact",
    "scaled_dot_product_attention",
    "KernelAttention exp",
    "performer-pytorch",
)


def main(argv=None):
    more = dict(input=runner.RUNS / "bench", output=runner.RESULTS, machine=str)
    options = runner.options(__doc__, argv, **more)
    results = runner.read(options.input / "results.json")
    date = results["machine"]["date"].partition("T")[0]
    name = options.machine or results["machine"]["cpu"]
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    path = options.output / f"{date}-{slug}.md"
    if path.exists():
        raise SystemExit(f"{path} exists: move it away, or name another --machine")
    parts = [f"# {date}, {name}", heading(results)]
    for of_results in overview, times, memory, compiling, not_measured:
        parts += [f"## {of_results.__doc__}", of_results(results)]
    decoded = runner.read(options.input / "decoding.json")
    if decoded:
        parts += [f"## {decoding.table.__doc__}", decoding.table(decoded)]
    runner.write_page(options.output, parts, path.name)
    print(f"{path}\n\n{overview(results)}")


def heading(results):
    """Lists the machine, versions in each environment, and missing environments."""
    lines = [f"- {name}: {value}" for name, value in results["machine"].items()]
    for environment, versions in results["versions"].items():
        lines.append(f"- environment {environment}: {tables.libraries(versions)}")
    lines += [f"- missing: {reason}" for reason in results["missing"].values()]
    return "\n".join(lines)


def overview(results):
    """Milliseconds of a training step in a graph, bidirectional / causal"""
    lines = []
    for length in sorted({row["length"] for row in results["rows"]}):
        lines.append([f"{length:,}"])
        for contender in OVERVIEW:
            both = [
                milliseconds(find(results["rows"], contender, form, "graph", length))
                for form in FORMS
            ]
            if not both[0][0].isdigit():  # shows the same reason only once
                both = dict.fromkeys(both)
            lines[-1].append(" / ".join(both))
    return table(["tokens", *(NAMES.get(name, name) for name in OVERVIEW)], lines)


def find(rows, contender, form, mode, length):
    """Returns the row of a float32 training step; an empty dict if there is none."""
    wanted = {"contender": contender, "form": form, "mode": mode, "length": length}
    wanted |= {"step": "training", "dtype": "float32"}
    return next((row for row in rows if wanted.items() <= row.items()), {})


def milliseconds(row):
    """Formats the median of a row, or a short reason why there is none."""
    if row.get("times"):
        return f"{1e3 * tables.median(row):,.0f}"
    reason = row.get("reason")
    if reason is None:
        return NOTHING
    return reason.partition(",")[0] if reason.startswith("needs") else "not run"


def times(results):
    """Time of a step in milliseconds, medians"""

    def cell(row):
        return tables.number(1e3 * tables.median(row) if row.get("times") else None, 1)

    return by_length(results["rows"], cell)


def memory(results):
    """Peak extra memory of a training step of the layer in MiB"""

    def cell(row):
        peak = row.get("peak_bytes")
        return tables.number(peak and peak / 2**20, 0)

    return by_length(results["memory"], cell)


def compiling(results):
    """Seconds to trace, and of the first call (which compiles)"""

    def cell(row):
        pair = row.get("trace_seconds"), row.get("first_call_seconds")
        return NOTHING if None in pair else "{:.1f} + {:.1f}".format(*pair)

    return by_length(results["rows"], cell)


def by_length(rows, cell):
    """Returns a table with a line for each case, and a column for each length."""
    lengths = sorted({row["length"] for row in rows})
    keys = ["form", "step", "dtype", "contender", "mode"]
    lines = []
    for key, same in by(rows, *keys):
        cells = {row["length"]: cell(row) for row in same}
        if set(cells.values()) != {NOTHING}:
            named = [NAMES.get(name, name) for name in key]
            lines.append([*named, *(cells.get(n, NOTHING) for n in lengths)])
    return table([*keys, *lengths], lines)


def not_measured(results):
    """Not measured, and why"""
    keys = "contender", "mode", "dtype", "form", "step", "length", "reason"
    rows = [
        [what, *(row[key] for key in keys)]
        for what, measured in (("time", "rows"), ("memory", "memory"))
        for row in results[measured]
        if row["reason"]
    ]
    return table(["", *keys], rows)


if __name__ == "__main__":
    main()
