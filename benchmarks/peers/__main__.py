"""Compares our layers with layers of other libraries: numbers, time and memory.

    python -m benchmarks.peers [--only numbers times] [--lengths 1024 4096]
        [--rounds 9] [--threads 2] [--limit 60] [--report-only]
        [--output benchmarks/results/peers]

Installs missing libraries into `.bench` (8 GB). Writes numbers.json, times.json, and
tables.md of both; a part that does not run keeps its file. Exits with 1 if some numbers
differ from the expectation in `benchmarks/peers/cases.py`.
"""

import sys

from benchmarks import runner, turns
from benchmarks.peers import cases, numbers, tables

PARTS = "numbers", "times"
ENVIRONMENTS = "kernel_attention", "hugging_face", "keras_hub"


def main(argv=None):
    more = dict(only=PARTS, lengths=(1024, 4096), output=runner.RESULTS / "peers")
    options = runner.options(__doc__, argv, {"only": PARTS}, **turns.OPTIONS, **more)
    paths = [options.output / f"{part}.json" for part in PARTS]
    parts = () if options.report_only else options.only
    surprises = run_numbers(options, paths[0]) if "numbers" in parts else []
    if "times" in parts:
        run_times(options, paths[1])
    runner.write_page(options.output, tables.report(*map(runner.read, paths)))
    return 1 if surprises else 0


def run_numbers(options, path):
    """Writes numbers.json; returns rows with unexpected results."""
    with turns.session(options.threads, ENVIRONMENTS) as (pool, results):
        for comparison in cases.COMPARISONS:
            row = numbers.compare(comparison, pool)
            results["rows"].append(row)
            print(f"{row['pair']}, {row['name']}: {tables.said(row)}", flush=True)
    runner.save(path, results)
    return [row for row in results["rows"] if not numbers.is_expected(row)]


def run_times(options, path):
    """Writes times.json, pair by pair."""
    pairs = [[*map(turns.row, pair)] for pair in cases.timed(options.lengths)]

    def alone(results):
        return [turns.row(turns.case_of(row), row["reason"]) for row in results["rows"]]

    turns.measured(options, path, lambda _: pairs, show, ENVIRONMENTS, alone)


def show(results, rows):
    for row in rows:
        where = "{side}, {form}, {length:,} tokens:".format(**row)
        print(tables.named(row), where, tables.milliseconds(row), "ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
