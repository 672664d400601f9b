"""Measures tokens per second of one causal layer; writes decoding.json.

python -m benchmarks.decoding [--rounds 5] [--threads 2] [--batches 1 8 64]
                              [--output runs/bench]

A cache of 64 sequences is one of 3.2 GB, and two programs have one at a time. The file
is written after each group of cases that take turns.
"""

import argparse
import pathlib
import statistics

from benchmarks import machine, tables, turns
from benchmarks.results import NAMES, ratio

POSITIONS = (100, 12_000)
# Sequences, and tokens of each in a run. XLA copies a cache when a run begins, which
# counts less the more tokens there are; with 64 sequences as many would take an hour.
TOKENS = {1: 256, 8: 256, 64: 64}
# A model that is compiled as a whole compiles its layers anyway.
CONTENDERS = ("softmax", "softmax, jit_compile=True", "key-value cache")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--batches", type=int, nargs="+", choices=TOKENS, default=[*TOKENS]
    )
    parser.add_argument("--output", type=pathlib.Path, default="runs/bench")
    options = parser.parse_args(argv)
    pool = turns.Pool(options.threads)
    results = {
        "machine": machine.describe(options.threads),
        "versions": pool.versions,
        "rows": [],
    }
    try:
        for group in groups(options.batches):
            rows = [turns.row(case) for case in group]
            turns.take_turns(rows, pool, options.rounds, limit=float("inf"))
            results["rows"] += rows
            turns.save(options.output / "decoding.json", results)
            print(table(results), flush=True)
    finally:
        pool.stop()


def groups(batches):
    """Cases that take turns with each other: those that memory holds together."""
    # positions are compared with each other, and a few sequences need little
    for batch in batches:
        positions = [POSITIONS] if batch <= 8 else [[p] for p in POSITIONS]
        yield from ([*cases(batch, together)] for together in positions)


def cases(batch, positions):
    return [
        {
            "contender": contender,
            "environment": "decoding",
            "mode": mode,
            "position": position,
            "batch": batch,
            "tokens": TOKENS[batch],
        }
        for mode in ("graph", "xla")
        for position in positions
        for contender in CONTENDERS
        if mode == "graph" or "jit_compile" not in contender
    ]


def table(results):
    """Decoding: tokens per second of one causal layer, and milliseconds per step"""
    rows = []
    medians = {
        _key(row): statistics.median(row["times"])
        for row in results["rows"]
        if row["times"]
    }
    for row in results["rows"]:
        key = contender, mode, batch, position = _key(row)
        cells = [NAMES[contender], mode, batch, position]
        seconds = medians.get(key)
        if seconds is None:
            rows.append([*cells, row["reason"], *3 * [tables.NOTHING]])
            continue
        first = min(at for name, *_, at in medians if name == contender)
        growth = ratio(seconds, medians.get((contender, mode, batch, first)))
        faster = ratio(medians.get(("key-value cache", *key[1:])), seconds)
        # of results of before there were batches
        per_step = seconds / row.get("tokens", TOKENS[1])
        rows.append(
            [
                *cells,
                f"{batch / per_step:.0f}",
                tables.number(1e3 * per_step, 3),
                tables.number(growth),
                tables.number(faster, 1),
            ]
        )
    header = "", "mode", "sequences", "position", "tokens/s", "ms/step"
    return tables.table([*header, "/ first position", "times the cache's speed"], rows)


def _key(row):
    # results of before there were batches are of one sequence
    return row["contender"], row["mode"], row.get("batch", 1), row["position"]


if __name__ == "__main__":
    main()
