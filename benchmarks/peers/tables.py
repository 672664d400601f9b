"""Markdown tables of comparisons and times."""

from benchmarks import runner, tables
from benchmarks.peers import numbers

TITLE = "# Beside other libraries: numbers and time"
ABOUT = """Written by `python -m benchmarks.peers`. Both layers have the same weights
and inputs; each runs in an environment of its own."""


def report(compared, timed):
    """Returns the page of `numbers.json` and `times.json`, which may be empty."""
    parts = [TITLE, ABOUT]
    if compared:
        parts += ["## Numbers", machine(compared), EXPLAINED]
        for pair, rows in tables.by(compared["rows"], "pair"):
            parts += [f"### {pair}", of_numbers(rows)]
            if any("random_blocks" in row for row in rows):
                parts += [ABOUT_BLOCKS, of_random_blocks(rows)]
    parts.append("## Time and memory")
    return parts + ([machine(timed), of_times(timed)] if timed else [NOT_TIMED])


EXPLAINED = """The largest difference of outputs beside the largest output; that of
gradients (of the input and all weights, for one random cotangent) divided by the
largest entry of that gradient. Hidden tokens do not count. float32."""
NOT_TIMED = """Not measured yet: `python -m benchmarks.peers --only times`, with nothing
beside it on the machine."""
ABOUT_BLOCKS = """The random blocks that the other layer draws, of all its heads and
blocks; "again" are those that a block sees anyway, or drew before."""


def machine(results):
    return runner.said(results["machine"], tables.libraries(results["versions"]))


def of_numbers(rows):
    lines = []
    for row in rows:
        output = gradient = tables.NOTHING
        if "output" in row:
            output = f"{row['output']:.1e} of {row['largest_output']:.1f}"
            gradient = f"{row['gradient']:.1e}"
        lines.append([row["name"], output, gradient, said(row)])
    return tables.table(["", "outputs", "gradients", ""], lines)


def said(row):
    """Formats the verdict with its reason, and a warning if it is unexpected."""
    verdict = numbers.verdict(row)
    reason = row.get("missing") or row["because"]
    text = verdict if reason is None else f"{verdict}: {reason}"
    if "missing" in row or numbers.is_expected(row):
        return text
    return f"**not as expected** {text} {row.get('reason', '')}".rstrip()


def of_random_blocks(rows):
    keys = "entries", "again", "largest", "blocks"
    lines = [
        [row["name"], *(row["random_blocks"][key] for key in keys)]
        for row in rows
        if "random_blocks" in row
    ]
    return tables.table(["", "drawn", "again", "the last", "blocks"], lines)


def of_times(timed):
    """Returns a table of milliseconds and peak MiB of training steps, ours / theirs."""
    lines = []
    for ours, theirs in zip(timed["rows"][::2], timed["rows"][1::2]):
        memory = [peak(row, timed["memory"]) for row in (ours, theirs)]
        lines.append(
            [
                named(ours),
                ours["form"],
                f"{ours['length']:,}",
                milliseconds(ours),
                milliseconds(theirs),
                tables.number(tables.ratio(*map(tables.median, (ours, theirs)))),
                *(tables.number(x and x / 2**20, 0) for x in memory),
                tables.number(tables.ratio(*memory)),
            ]
        )
    header = ["", "form", "tokens", "ours ms", "theirs ms", "ratio"]
    return tables.table([*header, "ours MiB", "theirs MiB", "ratio"], lines)


def named(row):
    feature_map = row["options"].get("feature_map")
    return row["pair"] if feature_map is None else f"{row['pair']}, {feature_map}"


def milliseconds(row):
    found = tables.median(row)
    return row["reason"] or tables.NOTHING if found is None else f"{1e3 * found:,.0f}"


def peak(row, memory):
    """Returns the peak in bytes of the same case, if it was measured by itself."""
    same = "pair", "side", "form", "length", "options"
    for other in memory:
        if all(other[key] == row[key] for key in same):
            return other.get("peak_bytes")
