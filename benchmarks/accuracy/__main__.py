"""Makes the figures of the Performer paper that a CPU can make, and checks its laws.

    python -m benchmarks.accuracy              # within 15 minutes on two cores
    python -m benchmarks.accuracy --quick      # two minutes: a look

Writes `results.json`, `tables.md` and pictures into `--output`. `--parts` makes some of
them, and keeps what stands there of the others. Ends with an error if a law does not
hold.
"""

import argparse
import json
import pathlib
import sys

import keras
import tensorflow as tf

from benchmarks import machine
from benchmarks.accuracy import checks, estimates, report, training

# Of the machine, what errors might depend on.
DESCRIBED = "cpu", "cores", "load_at_start", "python", "date", "command"
PARTS = "checks", "estimates", "peers", "training"


def main(argv=None):
    """Reads the command line; returns the number of checks that failed."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results.json"
    results = {"about": about(options), **kept(path, options)}
    for part in options.parts:
        results[part] = []
        for row in rows(part, options):
            results[part].append(row)
            path.write_text(json.dumps(results, indent=1) + "\n")
            print(line(part, row), flush=True)
        if part == "training":  # they end in any order
            results[part].sort(key=place)
    path.write_text(json.dumps(results, indent=1) + "\n")
    report.write(results, options.output)
    failed = [row["what"] for row in results.get("checks", []) if not row["passed"]]
    for what in failed:
        print(f"Does not hold: {what}")
    return len(failed)


def place(run):
    return run["seed"], training.ROWS.index(run["row"])


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="shorter and fewer; peers only where they are installed",
    )
    parser.add_argument(
        "--no-install",
        action="store_true",
        help="peers as they stand in .bench, without pip",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="models trained at once, each on one core; 0 for one after another",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/accuracy")
    )
    return parser


def about(options):
    described = machine.describe(options.workers)
    return {
        "quick": options.quick,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        **{name: described[name] for name in DESCRIBED},
    }


def kept(path, options):
    """The parts of an earlier run of the same kind that are not to be made again."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    if found["about"]["quick"] != options.quick:
        return {}
    return {part: found[part] for part in PARTS if part in found}


def rows(part, options):
    if part == "checks":
        return checks.checks(options.quick)
    if part == "estimates":
        return estimates.rows(options.quick)
    if part == "peers":
        install = not (options.quick or options.no_install)
        return estimates.peers(options.quick, install)
    return training.runs(options.quick, options.workers)


def line(part, row):
    """Line that is printed for a row."""
    if part == "checks":
        holds = "holds" if row["passed"] else "DOES NOT HOLD"
        return f"{row['law']}, {row['what']}: {holds}"
    if part == "training":
        return f"{row['row']}, seed {row['seed']}: {row['result']:.3f}"
    name = f"{row['estimator']}, H = {row['head_dim']}, std {row['std']}"
    if "reason" in row:
        return f"{name}: {row['reason']}"
    return f"{name}, m = {row['features']}: {row['relative_error']:.4f}"


if __name__ == "__main__":
    sys.exit(main() > 0)
