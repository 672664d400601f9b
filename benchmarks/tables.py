"""The tables of the report, each a function of `Results` that returns Markdown."""

import itertools
import statistics

from benchmarks import floor
from benchmarks.plan import BFLOAT16, BOTH, FORMS
from benchmarks.results import NAMES, ratio
from benchmarks.targets import LENGTHS, OURS, TARGETS

NOTHING = "–"
# The columns of the first table, which `benchmarks/README.md` shows.
OVERVIEW = (
    "softmax",
    "exact",
    "scaled_dot_product_attention",
    "KernelAttention exp",
    "performer-pytorch",
)


def overview(results):
    """Milliseconds of a training step in a graph, bidirectional / causal"""
    rows = []
    for length in results.lengths():
        rows.append([f"{length:,}"])
        for contender in OVERVIEW:
            both = [
                milliseconds(
                    results.row(
                        contender=contender, form=form, mode="graph", length=length
                    )
                )
                for form in FORMS
            ]
            if not both[0][0].isdigit():  # the same reason need not stand there twice
                both = dict.fromkeys(both)
            rows[-1].append(" / ".join(both))
    return table(["tokens", *(NAMES[contender] for contender in OVERVIEW)], rows)


def milliseconds(row):
    """The median of a row, or in two or three words why there is none."""
    if row.get("times"):
        return f"{1e3 * statistics.median(row['times']):,.0f}"
    reason = row.get("reason")
    if reason is None:
        return NOTHING
    return reason.partition(",")[0] if reason.startswith("needs") else "not run"


def product_rates(results):
    """GFLOP/s of a 2048^3 product that took turns with the others

    How fast the machine was, and how steadily.
    """
    rows = []
    for row in results.rows:
        if row["contender"] == "matmul" and row["times"]:
            rates = [1e-9 * floor.rate(seconds) for seconds in row["times"]]
            cells = min(rates), statistics.median(rates), max(rates)
            named = [row[key] for key in ("length", "form", "step", "part")]
            rows.append([*named, *(number(rate, 0) for rate in cells)])
    header = ["length", "form", "step", "part", "lowest", "median", "highest"]
    return table(header, rows)


def targets(results):
    """Targets: ratio of median times (share of the floor: at least)

    "Operations" is what would come if attention took the time of its operations, one
    after another, each in its faster mode (`benchmarks.operations`), beside the dense
    layers ("returns V"). It can be beaten where XLA runs them side by side or fuses
    them.
    """
    rows = []
    for target in TARGETS:
        cells = [target.label, target.mode]
        for length, limit in zip(LENGTHS, target.limits):
            value = target.value(results, length)
            sign = ">=" if target.peer is None else "<="
            if value is None:
                verdict = target.missing(results, length)
            else:
                verdict = "reached" if target.reached(value, limit) else "missed"
            operations = target.value_of_operations(results, length)
            cells += [number(value), f"{sign} {limit}", verdict, number(operations)]
        rows.append(cells)
    header = ["", "mode"]
    for length in LENGTHS:
        header += [f"L = {length}", "target", "", "operations"]
    return table(header, rows)


def times(results):
    """Time of a step in milliseconds, medians"""
    return by_length(results, lambda **case: results.seconds(**case), 1e3, 1)


def shares(results):
    """Share of the arithmetic floor (time of a matrix product of as many operations)"""
    return by_length(results, lambda **case: results.share_of_floor(**case), 1, 2)


def by_length(results, value, factor, digits):
    rows = []
    for part in ("layer", "attention"):
        for form in FORMS:
            for step in ("training", "forward"):
                for contender, mode in results.contenders():
                    case = {"contender": contender, "form": form, "mode": mode}
                    found = [
                        value(**case, part=part, step=step, length=length)
                        for length in results.lengths()
                    ]
                    if any(found):
                        cells = (number(x and factor * x, digits) for x in found)
                        rows.append([part, form, step, NAMES[contender], mode, *cells])
    return table(["part", "form", "step", "", "mode", *results.lengths()], rows)


def memory(results):
    """Peak extra memory of a training step of the layer in MiB

    Then its ratios: to KernelAttention's (targets at 16384: 0.4, causal 0.5), and of
    the longest length to 16384 (target: 4).
    """
    lengths = results.lengths(memory=True)
    rows = []
    for form in FORMS:
        for contender, mode in results.contenders():
            case = {"contender": contender, "form": form, "mode": mode}
            peer = {**case, "contender": "KernelAttention exp"}
            peaks = {n: results.peak_bytes(**case, length=n) for n in lengths}
            if any(peaks.values()):
                shown = [number(x and x / 2**20, 0) for x in peaks.values()]
                to_peer = ratio(
                    peaks.get(16384), results.peak_bytes(**peer, length=16384)
                )
                growth = ratio(peaks.get(65536), peaks.get(16384))
                cells = [*shown, number(to_peer), number(growth)]
                rows.append([form, NAMES[contender], mode, *cells])
    ratios = ["/ KernelAttention exp at 16384", "65536 / 16384"]
    return table(["form", "", "mode", *lengths, *ratios], rows)


def compiling(results):
    """Seconds to trace, and of the first call (which compiles), training step"""
    lengths = results.lengths()
    rows = []
    for form in FORMS:
        for contender, mode in results.contenders():
            case = {"contender": contender, "form": form, "mode": mode}
            cells = []
            for length in lengths:
                row = results.row(**case, length=length)
                pair = row.get("trace_seconds"), row.get("first_call_seconds")
                cells.append(
                    NOTHING if None in pair else "{:.1f} + {:.1f}".format(*pair)
                )
            if set(cells) != {NOTHING}:
                rows.append([form, NAMES[contender], mode, *cells])
    return table(["form", "", "mode", *lengths], rows)


def crossover(results):
    """From where the layer is faster than Keras' exact one: ratio of times, training"""
    lengths = [length for length in results.lengths() if length <= 2048]
    rows = []
    for form in FORMS:
        for mode in ("graph", "xla"):
            case = {"form": form, "mode": mode}
            found = {
                length: ratio(
                    results.seconds(contender=OURS, length=length, **case),
                    results.seconds(contender="exact", length=length, **case),
                )
                for length in lengths
            }
            cells = map(number, found.values())
            rows.append([form, mode, *cells, faster_from(found)])
    return table(["form", "mode", *lengths, "faster from"], rows)


def faster_from(ratios):
    """The shortest length from which on every ratio is below 1."""
    first = NOTHING
    for length in sorted(ratios, reverse=True):
        if ratios[length] is None or ratios[length] >= 1:
            break
        first = length
    return first


def bfloat16(results):
    """bfloat16 / float32, times of our layers, and of their dense layers alone"""
    rows = []
    for form, mode, step, contender in itertools.product(
        FORMS, BOTH, ("training", "forward"), BFLOAT16
    ):
        case = {"contender": contender, "form": form, "mode": mode, "step": step}
        cells = [
            number(
                ratio(
                    results.seconds(**case, length=length, dtype="bfloat16"),
                    results.seconds(**case, length=length),
                )
            )
            for length in LENGTHS
        ]
        rows.append([form, mode, step, NAMES[contender], *cells])
    return table(["form", "mode", "step", "", *LENGTHS], rows)


def not_measured(results):
    """Not measured, and why"""
    keys = "contender", "mode", "dtype", "form", "step", "part", "length", "reason"
    rows = [
        [what, *(row[key] for key in keys)]
        for what, measured in (("time", results.rows), ("memory", results.memory_rows))
        for row in measured
        if row["reason"]
    ]
    return table(["", *keys], rows)


def number(x, digits=2):
    return NOTHING if x is None else f"{x:.{digits}f}"


def table(header, rows):
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
