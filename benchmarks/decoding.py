"""Measures tokens per second of one causal layer; writes decoding.json.

python -m benchmarks.decoding [--rounds 5] [--threads 2] [--output runs/bench]
"""

import argparse
import pathlib
import statistics

from benchmarks import machine, tables, turns
from benchmarks.contenders import DECODED_TOKENS
from benchmarks.results import NAMES, ratio

POSITIONS = (100, 12_000)
# A model that is compiled as a whole compiles its layers anyway.
CONTENDERS = ("softmax", "softmax, jit_compile=True", "key-value cache")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path, default="runs/bench")
    options = parser.parse_args()
    pool = turns.Pool(options.threads)
    rows = [turns.row(case) for case in cases()]
    try:
        turns.take_turns(rows, pool, options.rounds, limit=float("inf"))
    finally:
        pool.stop()
    results = {
        "machine": machine.describe(options.threads),
        "versions": pool.versions,
        "rows": rows,
    }
    turns.save(options.output / "decoding.json", results)
    print(table(results))


def cases():
    return [
        {
            "contender": contender,
            "environment": "decoding",
            "mode": mode,
            "position": position,
        }
        for mode in ("graph", "xla")
        for position in POSITIONS
        for contender in CONTENDERS
        if mode == "graph" or "jit_compile" not in contender
    ]


def table(results):
    """Decoding: tokens per second of one causal layer, and milliseconds per token"""
    rows = []
    medians = {
        (row["contender"], row["mode"], row["position"]): statistics.median(
            row["times"]
        )
        for row in results["rows"]
        if row["times"]
    }
    for row in results["rows"]:
        contender, mode, position = row["contender"], row["mode"], row["position"]
        seconds = medians.get((contender, mode, position))
        if seconds is None:
            rows.append(
                [NAMES[contender], mode, position, row["reason"], *2 * [tables.NOTHING]]
            )
            continue
        first = min(at for name, *_, at in medians if name == contender)
        growth = ratio(seconds, medians.get((contender, mode, first)))
        faster = ratio(medians.get(("key-value cache", mode, position)), seconds)
        per_token = seconds / DECODED_TOKENS
        rows.append(
            [
                NAMES[contender],
                mode,
                position,
                f"{1 / per_token:.0f}",
                tables.number(1e3 * per_token, 3),
                tables.number(growth),
                tables.number(faster, 1),
            ]
        )
    header = "", "mode", "position", "tokens/s", "ms/token"
    return tables.table([*header, "/ first position", "times the cache's speed"], rows)


if __name__ == "__main__":
    main()
