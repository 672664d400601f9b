"""Reproduces figures of the Performer paper that a CPU can make, and checks its laws.

    python -m benchmarks.accuracy              # within 15 minutes on two cores
    python -m benchmarks.accuracy --quick      # two minutes: a preview
    python -m benchmarks.accuracy --no-install # only libraries already in .bench
    python -m benchmarks.accuracy --report-only

Writes `results.json` and `tables.md` into `--output`. `--parts` selects parts
to run; earlier results of other parts are kept. Ends with an error if a law does not
hold.
"""

import sys

import keras
import tensorflow as tf

from benchmarks import runner
from benchmarks.accuracy import checks, estimates, report, training

# Entries of `runner.describe` on which errors might depend.
DESCRIBED = "cpu", "cores", "load_at_start", "python", "date", "command"
# Functions of the options that return iterables of rows.
PARTS = {
    "checks": lambda options: checks.checks(options.quick),
    "estimates": lambda options: estimates.rows(options.quick),
    "peers": lambda options: estimates.peers(
        options.quick, install=not (options.quick or options.no_install)
    ),
    "training": lambda options: training.runs(options.quick, options.workers),
}


def main(argv=None):
    """Reads the command line; returns the number of checks that failed."""
    more = dict(quick=False, no_install=False, report_only=False, parts=(*PARTS,))
    more |= dict(workers=2, output=runner.RUNS / "accuracy")
    options = runner.options(__doc__, argv, {"parts": PARTS}, **more)
    path = options.output / "results.json"
    results = runner.read(path)
    if not options.report_only:
        if results.get("about", {}).get("quick") != options.quick:
            results = {}
        results = {**results, "about": about(options)}
        make(results, options, path)
    report.write(results, options.output)
    failed = [row["what"] for row in results.get("checks", []) if not row["passed"]]
    for what in failed:
        print(f"Does not hold: {what}")
    return len(failed)


def make(results, options, path):
    for part in options.parts:
        results[part] = []
        for row in PARTS[part](options):
            results[part].append(row)
            runner.save(path, results)
            print(part, *row.values(), flush=True)


def about(options):
    described = runner.describe(options.workers)
    versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
    machine = {name: described[name] for name in DESCRIBED}
    return {"quick": options.quick, **versions, **machine}


if __name__ == "__main__":
    sys.exit(main() > 0)
