"""Trains small models with every attention on tasks of long sequences.

    python -m benchmarks.long_range              # the core, two hours on two cores
    python -m benchmarks.long_range --quick      # minutes: too short to conclude
    python -m benchmarks.long_range --full       # every row, task and rate; a day
    python -m benchmarks.long_range --published  # the published lengths; for a GPU
    python -m benchmarks.long_range --costs      # tokens a second, and memory
    python -m benchmarks.long_range --times      # of a step of each row and task

Every task has its controls: no attention, exact attention, the window alone, and a
logistic regression on how often each token occurs. Each run appends a line to
`runs.jsonl` in `--output`, and is not made again as long as it stands there; `--tasks`,
`--rows`, `--seeds` and `--warm-up` choose some. It then writes `tables.md`,
after `--full` of all runs in that file; `--report-only` does so with those that are
there.
"""

import argparse
import pathlib

from benchmarks.learning import pool
from benchmarks.long_range import (
    costs,
    plan,
    proteins,
    report,
    rows,
    times,
    training,
)


def main(argv=None):
    """Reads the command line, trains what is missing and writes the report."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.costs:
        costs.complete(options.rows or rows.MODELS, options.output / "costs.json")
    wanted = plan.plan(options)
    if options.times:
        times.complete(wanted, options.output)
    train = not (options.report_only or options.costs or options.times)
    if train and plan.needs_proteins(wanted):
        proteins.read_proteins()  # downloads once, and not in every worker
    found = pool.complete(
        training.train,
        wanted,
        options.output / "runs.jsonl",
        plan.name_of,
        options.workers if train else None,
        all_there_are=options.full,
    )
    print(report.write(found, options.output))


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_range", description=__doc__.splitlines()[0]
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a twentieth of the steps")
    size.add_argument("--full", action="store_true", help="every task and row")
    size.add_argument("--published", action="store_true", help="the published lengths")
    parser.add_argument("--tasks", nargs="+", choices=plan.task_names())
    parser.add_argument("--rows", nargs="+", choices=rows.ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, choices=plan.SEEDS)
    parser.add_argument("--warm-up", nargs="+", choices=("without", "with"))
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="runs at once, each on one core; 0 for one after another on all cores",
    )
    parser.add_argument("--costs", action="store_true", help="measure, train nothing")
    parser.add_argument(
        "--times", action="store_true", help="time a step of each, train nothing"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="train nothing, read what is there"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/long_range")
    )
    return parser


if __name__ == "__main__":
    main()
