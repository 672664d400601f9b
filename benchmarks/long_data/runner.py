"""The command line of every script of this study: trains what is missing, reports."""

from benchmarks.learning import models, times, training
from benchmarks.learning.__main__ import (
    EVALUATIONS,
    KEY_DIM,
    QUICK_EVALUATIONS,
    QUICK_PART,
    SEEDS,
    cases,
    complete,
    is_asked,
    make_parser,
    name_of,
)
from benchmarks.long_data import report

EXACT_ROWS = models.EXACT, f"{models.EXACT}, {models.LONG_GATE}"
# The controls, and what features add to local attention.
ROWS = (
    models.WITHOUT,
    models.WINDOW,
    f"{models.WINDOW}, {models.LONG_GATE}",
    *EXACT_ROWS,
    "window + softmax",
    f"window + softmax, {models.LONG_GATE}",
    "window + taylor",
    f"window + taylor, {models.LONG_GATE}",
)
# Two cores have no time for exact attention to more tokens.
EXACT_UP_TO = 4096


def main(about, name, make_tasks, lengths, full_lengths, argv=None, add=None):
    """Reads the command line, trains what is missing and writes the report.

    Args:
        about: str, the documentation of the script.
        name: str, its name.
        make_tasks: function from a length and the parsed options to a list of tasks.
        lengths, full_lengths: ints, tokens of a sequence, by default and with `--full`.
        argv: list of strings, or `None` for those of the process.
        add: function that adds options to the parser, or `None`.
    """
    parser = make_parser(about, f"long_data.{name}")
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of a sequence")
    parser.add_argument("--rows", nargs="+", choices=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--steps", type=int, help="optimizer steps of every run")
    if add is not None:
        add(parser)
    options = parser.parse_args(argv)
    lengths = options.lengths or (full_lengths if options.full else lengths)
    tasks = [task for length in lengths for task in make_tasks(length, options)]
    wanted = plan(tasks, options)
    if options.times:
        times.complete(times.timed, cases(wanted), options.output)
    runs = complete(training.train, wanted, name_of, options)
    print(report.write(runs, options.output))


def plan(tasks, options):
    """Arguments of `training.train`, the first seeds of all tasks first."""
    part = QUICK_PART if options.quick else 1
    return [
        {
            "task": task,
            "row": row,
            "key_dim": KEY_DIM,
            "seed": seed,
            "learning_rate": task.learning_rate,
            "steps": options.steps or task.steps // part,
            "evaluations": QUICK_EVALUATIONS if options.quick else EVALUATIONS,
        }
        for seed in options.seeds or (SEEDS if options.full else SEEDS[:1])
        for task in tasks
        for row in ROWS
        if is_asked(row, options.rows)
        and (row not in EXACT_ROWS or task.length <= EXACT_UP_TO)
    ]
