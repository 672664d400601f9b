"""Makes tables and pictures from the results of `make bench`.

    python -m benchmarks.report [--input runs/bench] [--output benchmarks/results]
        [--machine NAME]

Writes all tables as Markdown to DATE-NAME.md in the output folder; prints its path and
the first table. Saves `time.png` and `memory.png` in the input folder. Never overwrites
DATE-NAME.md: results are kept, and people add comments to them.
"""

import re

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks import decoding, runner, tables
from benchmarks.measure import FORMS
from benchmarks.tables import NOTHING, by, table

# Names of contenders in tables and pictures.
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
# Colour and marker. Our line is thick; the lower bound for all layers is dashed.
INK, MUTED = "#1a1a1a", "#6b6b6b"
LINES = {
    "softmax": ("#0b5cab", "o"),
    "returns V": ("#8a8a8a", "."),
    "exact": ("#c2410c", "s"),
    "scaled_dot_product_attention": ("#e8a33d", "D"),
    "KernelAttention exp": ("#2e8b57", "^"),
    "performer-pytorch": ("#8e44ad", "v"),
}


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
    draw(results, options.input)
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


def in_milliseconds(row):
    return row.get("times") and 1e3 * tables.median(row)


def in_mebibytes(row):
    return row.get("peak_bytes") and row["peak_bytes"] / 2**20


def times(results):
    """Time of a step in milliseconds, medians"""
    rows = results["rows"]
    return by_length(rows, lambda row: tables.number(in_milliseconds(row) or None, 1))


def memory(results):
    """Peak extra memory of a training step of the layer in MiB"""
    rows = results["memory"]
    return by_length(rows, lambda row: tables.number(in_mebibytes(row), 0))


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


def draw(results, folder):
    """Writes `time.png` and `memory.png`, as in figure 3 of the paper."""
    for name, rows, value, unit, title in (
        ("time", "rows", in_milliseconds, "milliseconds", "Forward and backward pass"),
        ("memory", "memory", in_mebibytes, "MiB", "Peak memory of a training step"),
    ):
        if results[rows]:
            figure = panels(results[rows], value, unit, f"{title} of one layer")
            figure.savefig(folder / f"{name}.png", dpi=160)


def panels(rows, value, unit, title):
    """Draws a panel for each form and a line for each contender, if possible by XLA."""
    lengths = sorted({row["length"] for row in rows})
    figure = Figure(figsize=(10, 5.4), facecolor="white", layout="constrained")
    labelled = {}
    for axes, form in zip(figure.subplots(1, 2, sharey=True), FORMS):
        for contender, (colour, marker) in LINES.items():
            found = []
            for mode in ("graph", "xla"):
                values = {
                    n: value(find(rows, contender, form, mode, n)) for n in lengths
                }
                found = [point for point in values.items() if point[1]] or found
            if not found:
                continue
            ours, name = contender == "softmax", NAMES.get(contender, contender)
            (labelled[name],) = axes.plot(
                *zip(*found),
                color=colour,
                marker=marker,
                markersize=7 if ours else 5,
                linewidth=3.5 if ours else 1.6,
                linestyle="--" if contender == "returns V" else "-",
                zorder=3 if ours else 2,
            )
        axes.set_title(form, color=INK, fontsize=13)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("length L", color=INK, fontsize=12)
        axes.grid(True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=MUTED, labelsize=11)
    figure.axes[0].set_ylabel(unit, color=INK, fontsize=12)
    figure.suptitle(f"{title} (XLA; PyTorch eager)", color=INK, fontsize=14)
    place = dict(loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    figure.legend(labelled.values(), labelled.keys(), **place)
    return figure


if __name__ == "__main__":
    main()
