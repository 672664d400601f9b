"""Compares time and memory of a training step of this layer and of others.

    python -m benchmarks.measure [--lengths 256 512 ...] [--contenders softmax ...]
        [--rounds 9] [--threads 2] [--limit 60] [--report-only] [--output runs/bench]

Steps run in graph mode, of PyTorch eagerly. `--contenders` selects some, and skips
memory, which leaves time for more rounds. A contender is omitted at lengths where a run
would take longer than the limit. Writes results.json and tables.md.
"""

from benchmarks import contenders, runner, tables, turns
from benchmarks.tables import NOTHING, by, table

BUSY_LOAD = 0.5
LENGTHS = (256, 512, 1024, 2048, 4096, 16384, 65536)
MEMORY_LENGTHS = (4096, 16384, 65536)
FORMS = ("bidirectional", "causal")
# Names in tables, and environments.
CONTENDERS = {
    "softmax": ("ours, softmax", "ours"),
    "exact": ("Keras MultiHeadAttention", "ours"),
    "scaled_dot_product_attention": ("PyTorch scaled_dot_product_attention", "torch"),
    "KernelAttention exp": ("KernelAttention exp", "kernel_attention"),
    "performer-pytorch": ("performer-pytorch", "torch"),
    # not compiled: from 1,024 tokens on, the opposite of the default
    "softmax, jit_compile=False": ("ours, softmax, jit_compile=False", "ours"),
}
# Contenders whose time grows with the square of the length; others are linear.
QUADRATIC = {"exact", "scaled_dot_product_attention"}


def main(argv=None):
    more = dict(lengths=LENGTHS, contenders=[str], output=runner.RUNS / "bench")
    choices = {"contenders": CONTENDERS}
    options = runner.options(__doc__, argv, choices, **turns.OPTIONS, **more)
    chosen = options.contenders or CONTENDERS

    def planned(case, results):
        """Makes a row for the case, with the reason if it cannot be measured."""
        reason = too_large(case, runner.free_bytes())
        reason = reason or too_slow(case, results["rows"], options.limit)
        return turns.row(case, reason)

    def of_time(results):
        load = results["machine"]["load_at_start"]
        if load > BUSY_LOAD:
            print(f"Warning: other programs are running (load {load:.1f}); ratios to")
            print("PyTorch can be wrong many times over if they share its cores.")
        for group in groups(sorted(options.lengths), chosen):
            yield [planned(case, results) for case in group]

    def of_memory(results):
        lengths = sorted({*options.lengths} & {*MEMORY_LENGTHS})
        every = [] if options.contenders else groups(lengths, chosen)
        return (planned(case, results) for group in every for case in group)

    environments = sorted({CONTENDERS[name][1] for name in chosen})
    path = options.output / "results.json"
    results = turns.measured(options, path, of_time, show, environments, of_memory)
    print(runner.write_page(options.output, report(results)))


def groups(lengths, chosen):
    """Yields lists of cases that take turns."""
    for length in lengths:
        for form in FORMS:
            shared = {"part": "layer", "form": form, "length": length}
            yield [
                {"contender": name, "environment": CONTENDERS[name][1], **shared}
                for name in chosen
            ]


def too_large(case, free_bytes):
    """Returns the reason why a case does not fit in memory; `None` if it fits."""
    three_arrays = 3 * 4 * contenders.NUM_HEADS * case["length"]  # of float32
    needed = 0
    if case["contender"] == "exact":
        needed = three_arrays * case["length"]
    elif case["contender"] == "performer-pytorch" and case["form"] == "causal":
        # stores the running sum after each token (measured: 6.5 GB at 4096)
        needed = three_arrays * contenders.NUM_RANDOM_FEATURES * contenders.KEY_DIM
    if needed > free_bytes:
        return f"needs {needed / 1e9:.0f} GB, {free_bytes / 1e9:.0f} GB are free"


def too_slow(case, rows, limit):
    """Returns the reason why a run would exceed `limit`, from shorter `rows`."""
    for row in reversed(rows):
        seconds = row.get("times") or [row.get("first_call_seconds")]
        same = all(row[key] == case[key] for key in ("contender", "form"))
        if same and seconds[0] is not None:
            break
    else:
        return None
    power = 2 if case["contender"] in QUADRATIC else 1
    shortest = min(seconds)
    expected = shortest * (case["length"] / row["length"]) ** power
    if expected > limit:
        return (
            f"a run would take {expected:.0f} s ({shortest:.1f} s at length "
            f"{row['length']}), the limit is {limit:g} s"
        )


def show(results, rows):
    for row in rows:
        peak = row.get("peak_bytes")
        said = [] if peak is None else [f"{peak / 2**20:.0f} MiB"]
        keys = "length", "form", "contender"
        print(*(row[key] for key in keys), time_of(row), *said, row["reason"] or "")


def report(results):
    said = runner.said(results["machine"], tables.libraries(results["versions"]))
    missing = (f"Missing: {reason}." for reason in results["missing"].values())
    parts = ["# One layer beside other libraries", said, *missing]
    parts += [f"## {overview.__doc__}", overview(results)]
    if results["memory"]:
        parts += [f"## {memory.__doc__}", memory(results)]
    return parts


def overview(results):
    """Milliseconds of a training step in a graph, bidirectional / causal"""
    return by_length(results["rows"], time_of)


def memory(results):
    """Peak extra memory of a training step in MiB, bidirectional / causal"""

    def cell(row):
        peak = row.get("peak_bytes")
        return tables.number(peak and peak / 2**20, 0)

    return by_length(results["memory"], cell)


def by_length(rows, cell):
    """Returns a table with a line for each length, and a column for each contender."""
    cells = {(row["length"], row["contender"], row["form"]): cell(row) for row in rows}
    there = [name for name in CONTENDERS if name in dict(by(rows, "contender"))]
    lines = []
    for length in sorted({row["length"] for row in rows}):
        lines.append([f"{length:,}"])
        for name in there:
            both = [cells.get((length, name, form), NOTHING) for form in FORMS]
            if not both[0][0].isdigit():  # shows the same reason only once
                both = dict.fromkeys(both)
            lines[-1].append(" / ".join(both))
    return table(["tokens", *(CONTENDERS[name][0] for name in there)], lines)


def time_of(row):
    """Formats the median of a row in ms, or a short reason why there is none."""
    if row.get("times"):
        return f"{1e3 * tables.median(row):,.0f}"
    reason = row.get("reason")
    if reason is None:
        return NOTHING
    return reason.partition(",")[0] if reason.startswith("needs") else "not run"


if __name__ == "__main__":
    main()
