"""Measures tokens per second of one causal layer; writes decoding.json.

    python -m benchmarks.decoding [--rounds 5] [--threads 2] [--batches 1 8 64]
        [--output runs/bench]

A cache for 64 sequences takes 3.2 GB, and two programs have one at the same time. The
file is written after each group of cases that take turns.
"""

from benchmarks import runner, tables, turns

POSITIONS = (100, 12_000)
# Numbers of sequences, and tokens that a run decodes in each. XLA copies the cache once
# a run, which matters less with more tokens. 64 sequences with 256 would take an hour.
TOKENS = {1: 256, 8: 256, 64: 64}
NAMES = {"softmax": "ours, softmax", "key-value cache": "exact, key-value cache"}


def main(argv=None):
    more = {**turns.OPTIONS, "rounds": 5, "limit": float("inf")}
    more |= {"batches": (*TOKENS,), "output": runner.RUNS / "bench"}
    options = runner.options(__doc__, argv, {"batches": TOKENS}, **more)
    results = turns.measured(
        options,
        options.output / "decoding.json",
        lambda _: groups(options.batches),
        lambda results, _: print(table(results), flush=True),
    )
    if options.report_only:
        print(table(results))


def groups(batches):
    """Yields lists of rows that take turns and fit in memory together."""
    # positions should take turns to be compared, and fit for a few sequences
    for batch in batches:
        for positions in [POSITIONS] if batch <= 8 else [[p] for p in POSITIONS]:
            yield [
                turns.row(
                    {
                        "contender": contender,
                        "environment": "ours",
                        "part": "decoding",
                        "mode": mode,
                        "position": position,
                        "batch": batch,
                        "tokens": TOKENS[batch],
                    }
                )
                for mode in ("graph", "xla")
                for position in positions
                for contender in NAMES
            ]


def table(results):
    """Decoding: tokens per second of one causal layer, and milliseconds per step"""
    keys = "contender", "mode", "batch", "position"
    medians = {
        tuple(row[key] for key in keys): tables.median(row) for row in results["rows"]
    }
    lines = []
    for row in results["rows"]:
        contender, *where = (row[key] for key in keys)
        seconds = medians[contender, *where]
        line = [NAMES[contender], *where]
        if seconds is None:
            lines.append([*line, row["reason"], *3 * [tables.NOTHING]])
            continue
        first = min(at for name, *_, at in medians if name == contender)
        growth = tables.ratio(seconds, medians.get((contender, *where[:2], first)))
        faster = tables.ratio(medians.get(("key-value cache", *where)), seconds)
        per_step = seconds / row["tokens"]
        line += [f"{row['batch'] / per_step:.0f}", tables.number(1e3 * per_step, 3)]
        lines.append([*line, tables.number(growth), tables.number(faster, 1)])
    header = "", "mode", "sequences", "position", "tokens/s", "ms/step"
    return tables.table([*header, "/ first position", "times the cache's speed"], lines)


if __name__ == "__main__":
    main()
