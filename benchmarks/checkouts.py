"""Compares the layer of this checkout with that of another one, in pairs.

    python -m benchmarks.checkouts OTHER [--this .] [--lengths 1024 4096 16384]
        [--pairs 20] [--sittings 4] [--processes 3] [--output runs/checkouts]

Each checkout has a process of its own, and both have the same benchmark: this one's.
A pair is one step of each, one right after the other, in an order that alternates; a
ratio is this checkout's time divided by that of the other, and a case has the median
of its pairs. After each sitting new processes are started, because one process can be
slower than another of the same code for as long as it lives; tracing and first calls
(which compile) are measured once in each sitting. Memory is the peak of a process that
did nothing else, `--processes` times for each case and checkout.

Compare a checkout with a copy of itself to see what the machine makes of nothing.
`--contenders`, `--forms`, `--modes` and `--steps` choose some of the cases.
"""

import argparse
import itertools
import pathlib
import statistics

from benchmarks import machine, tables, turns
from benchmarks.measure import BOTH, FORMS

LENGTHS = (1024, 4096, 16384)
STEPS = ("forward", "training")
SIDES = ("this", "other")
LARGEST = 1.05  # a ratio that is worth a look
NAMED = ["contender", "length", "form", "step", "mode"]


def main(argv=None):
    """Reads the command line, measures, writes `checkouts.json` and prints tables."""
    options = parsed(argv)
    rows = cases(options)
    results = {
        "machine": machine.describe(options.threads),
        "versions": {},
        "rows": [{**case, "pairs": [], "made": []} for case in rows],
        "memory": [
            {**case, "made": []}
            for case in (rows if options.processes else [])
            if case["step"] == "training"
        ],
    }
    measure(results, options)
    print(report(results))


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=pathlib.Path, help="the folder of the other")
    parser.add_argument("--this", type=pathlib.Path, default=turns.ROOT)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--sittings", type=int, default=4)
    parser.add_argument("--processes", type=int, default=3, help="0: no memory")
    parser.add_argument("--threads", type=int, default=2)
    # no `choices`: a checkout may know more than this one
    parser.add_argument("--contenders", nargs="+", default=("softmax",))
    for name, known in ("forms", FORMS), ("modes", BOTH), ("steps", STEPS):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    parser.add_argument("--output", type=pathlib.Path, default="runs/checkouts")
    options = parser.parse_args(argv)
    for folder in options.this, options.other:
        if not (folder / "keras_performer").is_dir():
            parser.error(f"no keras_performer in {folder}")
    return options


def cases(options):
    """Cases to compare, as `benchmarks/contenders/__init__.py` describes them."""
    chosen = itertools.product(
        options.contenders,
        sorted(options.lengths),
        options.forms,
        options.steps,
        options.modes,
    )
    shared = {"part": "layer", "dtype": "float32"}
    return [{**dict(zip(NAMED, values)), **shared} for values in chosen]


def measure(results, options):
    """Fills the rows of results."""
    checkouts = {side: str(getattr(options, side).resolve()) for side in SIDES}

    def start(side, threads):
        return turns.Worker(turns.OURS, threads, checkout=checkouts[side])

    path = options.output / "checkouts.json"
    for sitting in range(options.sittings):
        pairs = options.pairs // options.sittings
        pairs += sitting < options.pairs % options.sittings
        with turns.session(options.threads, start=start) as (pool, begun):
            for index, row in enumerate(results["rows"]):
                first = (sitting + index) % 2  # neither is always made first
                row["made"].append(make(row, pool, first))
                run_pair(pool, first)  # TensorFlow optimizes again at the second call
                row["pairs"] += [
                    run_pair(pool, (first + pair) % 2) for pair in range(pairs)
                ]
                pool.drop()
                found = ratios(row["pairs"])
                ratio = f"{statistics.median(found):.3f}" if found else "-"
                print(f"sitting {sitting + 1}: {label(row)}: {ratio}", flush=True)
            results["versions"] = begun["versions"]
        turns.save(path, results)
    for repeat in range(options.processes):
        for index, row in enumerate(results["memory"]):
            with turns.session(options.threads, start=start) as (pool, _):
                row["made"].append(make(row, pool, (repeat + index) % 2))
        turns.save(path, results)


def in_order(first):
    return (*SIDES[first:], *SIDES[:first])


def make(row, pool, first):
    """Makes the row's program on each side; returns what that took."""
    case = {key: row[key] for key in row if key not in ("pairs", "made")}
    return {
        side: pool.ask(side, do="make", name="program", case=case)
        for side in in_order(first)
    }


def run_pair(pool, first):
    return {side: pool.ask(side, do="run", name="program") for side in in_order(first)}


def ratios(entries, figure=None):
    """Numbers of this checkout divided by the other's, or one figure of dicts."""
    pairs = [[entry[side] for side in SIDES] for entry in entries]
    if figure is not None:
        pairs = [[numbers[figure] for numbers in pair] for pair in pairs]
    return [this / other for this, other in pairs if this and other]


def label(row):
    return "{contender}, {length:,} tokens, {form}, {step}, {mode}".format(**row)


def report(results):
    """Markdown: the tables, and the summary that they come to."""
    parts = [
        "# This checkout / the other",
        "\n".join(f"- {key}: {value}" for key, value in results["machine"].items()),
        times(results["rows"]),
        summary(results["rows"]),
    ]
    if results["memory"]:
        parts.append(memory(results["memory"]))
    return "\n\n".join(parts)


def times(rows):
    """Milliseconds of a step, and the ratio with the middle half of its pairs."""
    lines = []
    for row in rows:
        found = ratios(row["pairs"])
        if not found:
            continue
        sides = ([pair[side] for pair in row["pairs"]] for side in SIDES)
        low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else 3 * found
        traced = ratios(row["made"], "trace_seconds")
        called = ratios(row["made"], "first_call_seconds")
        lines.append(
            [
                *(row[key] for key in NAMED),
                *(f"{1e3 * statistics.median(seconds):.1f}" for seconds in sides),
                f"{statistics.median(found):.3f}",
                f"{low:.3f}-{high:.3f}",
                f"{statistics.median(traced):.2f}",
                f"{statistics.median(called):.2f}",
            ]
        )
    ms = ["this ms", "other ms", "ratio", "middle half"]
    return tables.table([*NAMED, *ms, "trace ratio", "first call ratio"], lines)


def summary(rows):
    medians = {
        label(row): statistics.median(found)
        for row in rows
        if (found := ratios(row["pairs"]))
    }
    if not medians:
        return "No pairs."
    worst = max(medians, key=medians.get)
    above = [name for name, value in medians.items() if value > LARGEST]
    means = {f"{len(medians)} ratios": statistics.geometric_mean(medians.values())}
    for name, key in (
        ("tracing", "trace_seconds"),
        ("first calls", "first_call_seconds"),
    ):
        found = [statistics.median(ratios(row["made"], key)) for row in rows]
        means[name] = statistics.geometric_mean(found)
    return "\n".join(
        [f"- geometric mean of {name}: {mean:.3f}" for name, mean in means.items()]
        + [
            f"- largest: {medians[worst]:.3f} ({worst})",
            f"- above {LARGEST}: {'; '.join(above) or 'none'}",
        ]
    )


def memory(rows):
    """Peak of a training step beyond the process, in MiB: medians."""
    lines, all_ratios = [], []
    for row in rows:
        peaks = [[made[side]["peak_bytes"] for made in row["made"]] for side in SIDES]
        if None in itertools.chain(*peaks):
            return "Peak memory: only Linux tells."
        this, other = map(statistics.median, peaks)
        all_ratios.append(this / other)
        cells = [f"{peak / 2**20:.0f}" for peak in (this, other)]
        lines.append([*(row[key] for key in NAMED), *cells, f"{this / other:.3f}"])
    mean = statistics.geometric_mean(all_ratios)
    table = tables.table([*NAMED, "this MiB", "other MiB", "ratio"], lines)
    return f"{table}\n\n- geometric mean of memory: {mean:.3f}"


if __name__ == "__main__":
    main()
