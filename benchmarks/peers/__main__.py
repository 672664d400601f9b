"""Compares our layers with those of other libraries: numbers, time and memory.

    python -m benchmarks.peers [--only numbers|times] [--lengths 1024 4096]
        [--rounds 9] [--threads 2] [--limit 60] [--output benchmarks/results/peers]

Installs the other libraries into `.bench` where they are not there (8 GB). Writes
numbers.json, times.json, and tables.md of both; a part that was not run keeps its file.
Ends with 1 if some numbers are not as `benchmarks/peers/cases.py` expects them.
"""

import argparse
import json
import os
import pathlib
import sys

from benchmarks import machine, measure, turns
from benchmarks.peers import cases, environments, numbers, tables, timed


def main(argv=None):
    options = parsed(argv)
    missing = measure.install_missing(environments.ENVIRONMENTS)
    surprises = []
    if options.only != "times":
        surprises = run_numbers(options, missing)
    if options.only != "numbers":
        run_times(options, missing)
    written = [read(options.output / name) for name in ("numbers.json", "times.json")]
    (options.output / "tables.md").write_text(tables.report(*written))
    print(f"Wrote {options.output / 'tables.md'}")
    return 1 if surprises else 0


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("numbers", "times"))
    parser.add_argument("--lengths", type=int, nargs="+", default=timed.LENGTHS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60, help="seconds of a run")
    parser.add_argument(
        "--output", type=pathlib.Path, default="benchmarks/results/peers"
    )
    return parser.parse_args(argv)


def run_numbers(options, missing):
    """Writes numbers.json; returns the rows that are not as expected."""
    pool = turns.Pool(options.threads, environments.ENVIRONMENTS, missing)
    results = begun(options, pool)
    try:
        for comparison in cases.COMPARISONS:
            row = numbers.compare(comparison, pool)
            results["rows"].append(row)
            print(f"{row['pair']}, {row['name']}: {tables.said(row)}", flush=True)
    finally:
        pool.stop()
    turns.save(options.output / "numbers.json", results)
    return [row for row in results["rows"] if not numbers.is_expected(row)]


def run_times(options, missing):
    """Writes times.json, group by group."""
    pool = turns.Pool(options.threads, environments.ENVIRONMENTS, missing)
    results = {**begun(options, pool), "memory": []}
    path = options.output / "times.json"
    try:
        for group in timed.groups(options.lengths):
            rows = [turns.row(case) for case in group]
            turns.take_turns(rows, pool, options.rounds, options.limit)
            results["rows"] += rows
            results["machine"]["highest_load"] = max(
                results["machine"].get("highest_load", 0), os.getloadavg()[0]
            )
            turns.save(path, results)
            print_times(rows)
        for row in results["rows"]:
            pool.stop()  # the peak of a process is that of all it ever ran
            alone = turns.row(
                {k: v for k, v in row.items() if k not in turns.MEASURED}, row["reason"]
            )
            turns.take_turns([alone], pool, rounds=0, limit=options.limit)
            results["memory"].append(alone)
            turns.save(path, results)
    finally:
        pool.stop()


def begun(options, pool):
    described = machine.describe(options.threads)
    return {"machine": described, "versions": pool.versions, "rows": []}


def print_times(rows):
    ours, theirs = rows
    times = f"{tables.milliseconds(ours)} / {tables.milliseconds(theirs)} ms"
    where = "{form}, {length:,} tokens".format(**ours)
    print(f"{tables.named(ours)}, {where}: {times}", flush=True)


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
