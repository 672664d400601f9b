"""Trains small models with different attentions on tasks in which attention matters.

    python -m benchmarks.learning              # the core, an hour on two cores
    python -m benchmarks.learning --quick      # minutes: a look, too short to conclude
    python -m benchmarks.learning --full       # a day; goes on where it was stopped
    python -m benchmarks.learning --times      # of a step of each row and task

Every task has its controls: no attention, exact attention, the exact window alone. Each
run appends a line to `runs.jsonl` in `--output`, and is not made again as long as it
stands there; `--tasks`, `--rows`, `--key-dims` and `--seeds` choose some, of the core
and of what it leaves out. It then writes `tables.md` and plots, after `--full` of all
runs in that file; `--report-only` does so with the runs that there are.
"""

import argparse
import pathlib

from benchmarks.learning import plan, pool, report, rows, times, training
from benchmarks.learning.plan import name_of


def main(argv=None):
    """Reads the command line, trains what is missing and writes the report."""
    parser = make_parser()
    options = parser.parse_args(argv)
    wanted = plan.plan(options)
    without_runs = set(options.seeds or ()) - {run["seed"] for run in wanted}
    if without_runs:
        parser.error(f"No chosen task has seed {min(without_runs)}")
    if options.times:
        options.output.mkdir(parents=True, exist_ok=True)
        times.complete(times.timed, plan.cases(wanted), options.output)
    train = not (options.report_only or options.times)
    found = pool.complete(
        training.train,
        wanted,
        options.output / "runs.jsonl",
        name_of,
        options.workers if train else None,
        all_there_are=options.full,
    )
    text = report.write(found, options.output)
    print(text)


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__.splitlines()[0]
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", action="store_true", help="a twentieth of the steps, fewer rows"
    )
    length.add_argument(
        "--full", action="store_true", help="every task, row, size and rate"
    )
    parser.add_argument("--tasks", nargs="+", choices=plan.task_names())
    parser.add_argument("--rows", nargs="+", choices=rows.ROWS + rows.FURTHER)
    parser.add_argument("--key-dims", nargs="+", type=int, choices=plan.KEY_DIMS)
    parser.add_argument("--seeds", nargs="+", type=int, choices=plan.FOLDS)
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="runs at once, each on one core; 0 for one after another on all cores",
    )
    parser.add_argument(
        "--times", action="store_true", help="time a step of each, train nothing"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="train nothing, read what is there"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/learning")
    )
    return parser


if __name__ == "__main__":
    main()
