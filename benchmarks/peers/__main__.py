"""Compares our layers with those of other libraries: numbers, time and memory.

    python -m benchmarks.peers [--only numbers|times] [--lengths 1024 4096]
        [--rounds 9] [--threads 2] [--limit 60] [--output benchmarks/results/peers]

Installs the other libraries into `.bench` where they are not there (8 GB). Writes
numbers.json, times.json, and tables.md of both; a part that was not run keeps its file.
Ends with 1 if some numbers are not as `benchmarks/peers/cases.py` expects them.
"""

import json
import sys

from benchmarks import turns
from benchmarks.peers import cases, numbers, tables

ENVIRONMENTS = "kernel_attention", "hugging_face", "keras_hub"


def main(argv=None):
    parser = turns.parser(__doc__, "benchmarks/results/peers", rounds=9)
    parser.add_argument("--only", choices=("numbers", "times"))
    parser.add_argument("--lengths", type=int, nargs="+", default=(1024, 4096))
    options = parser.parse_args(argv)
    paths = [options.output / f"{part}.json" for part in ("numbers", "times")]
    surprises = [] if options.only == "times" else run_numbers(options, paths[0])
    if options.only != "numbers":
        run_times(options, paths[1])
    written = [
        json.loads(path.read_text()) if path.exists() else None for path in paths
    ]
    (options.output / "tables.md").write_text(tables.report(*written))
    print(f"Wrote {options.output / 'tables.md'}")
    return 1 if surprises else 0


def run_numbers(options, path):
    """Writes numbers.json; returns the rows that are not as expected."""
    with turns.session(options.threads, ENVIRONMENTS) as (pool, results):
        for comparison in cases.COMPARISONS:
            row = numbers.compare(comparison, pool)
            results["rows"].append(row)
            print(f"{row['pair']}, {row['name']}: {tables.said(row)}", flush=True)
    turns.save(path, results)
    return [row for row in results["rows"] if not numbers.is_expected(row)]


def run_times(options, path):
    """Writes times.json, pair by pair."""
    with turns.session(options.threads, ENVIRONMENTS) as (pool, results):
        pairs = [[*map(turns.row, pair)] for pair in cases.timed(options.lengths)]
        arguments = pool, options, results, path
        turns.measure(pairs, *arguments, show)
        alone = [
            turns.row(
                {key: x for key, x in row.items() if key not in turns.MEASURED},
                row["reason"],
            )
            for row in results["rows"]
        ]
        turns.measure_memory(alone, *arguments, lambda row: None)


def show(rows):
    ours, theirs = rows
    times = f"{tables.milliseconds(ours)} / {tables.milliseconds(theirs)} ms"
    where = "{form}, {length:,} tokens".format(**ours)
    print(f"{tables.named(ours)}, {where}: {times}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
