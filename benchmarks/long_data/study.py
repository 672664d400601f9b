"""The command and the page of every script here: trains what is missing, reports."""

import datetime
import statistics

from benchmarks import runner
from benchmarks.learning import models, times, training
from benchmarks.learning.__main__ import KEY_DIM, SEEDS, run_of
from benchmarks.learning.report import (
    at_equal_time,
    equal_time,
    made_by,
    milliseconds,
    minus,
    of_row,
    opening,
)
from benchmarks.runner import is_asked
from benchmarks.tables import NOTHING, by, table

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


def main(about, name, make_tasks, lengths, full_lengths, argv=None, **more):
    """Reads the command line, trains what is missing and writes the report.

    Args:
        about, name: strs, the documentation of the script and its name.
        make_tasks: function from a length and the options to a list of tasks.
        lengths, full_lengths: ints, tokens of a sequence, by default and with `--full`.
        argv: list of strings, or `None` for those of the process.
        **more: options, as in `runner.options`.
    """
    more |= dict(lengths=[int], steps=int, output=runner.RUNS / "long_data" / name)
    options = runner.options(about, argv, {"rows": ROWS}, **times.OPTIONS, **more)
    lengths = options.lengths or (full_lengths if options.full else lengths)
    tasks = [
        task
        for length in lengths
        for task in make_tasks(length, options)
        if is_asked(task.name, options.tasks)
    ]
    study = training.train, times.timed, plan(tasks, options), training.FIELDS
    times.study(options, *study, write)


def plan(tasks, options):
    """Arguments of `training.train`, the first seeds of all tasks first."""
    return [
        run_of(
            task, row, KEY_DIM, seed, task.learning_rate, options.quick, options.steps
        )
        for seed in options.seeds or (SEEDS if options.full else SEEDS[:1])
        for task in tasks
        for row in ROWS
        if is_asked(row, options.rows)
        and (row not in EXACT_ROWS or task.length <= EXACT_UP_TO)
    ]


def write(runs, folder):
    """Writes `tables.md`, after equal steps and equal time; returns the text."""
    runs = times.retold(runs, folder)
    parts = opening("# Long real data", runs, folder, explanation)
    for (task, steps), same in by(runs, "task", "steps"):
        about = f"{steps:,} steps, window {same[0]['window']}."
        parts += [f"## {task}\n\n{about}", task_table(same)]
    return runner.write_page(folder, parts)


def explanation(runs):
    machines, versions, hours = made_by(runs)
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    return f"""\
Means over seeds, of held-out data. All rows of a task have the same steps, batches,
learning rate and, to 1 %, parameters. Less is better in bits, more in accuracy. "After
S s" is at equal time: the fastest row with attention takes all its steps in it, and
values between two measurements are interpolated. "Minus {models.WINDOW}" is the mean
difference from local attention of the same seeds in the first column, ± its standard
error. "{models.WINDOW}" is local attention; what it has beside it are features.

{len(runs)} runs, seeds {seeds}, on {machines}, with TensorFlow {versions}; {hours:.1f}
hours, summed over runs; written {datetime.date.today()}."""


def task_table(runs):
    """A line for each attention in one task, with every part of what is measured."""
    seconds = equal_time(runs)
    local = of_row(runs, models.WINDOW)
    names = runs[0].get("parts") or [runs[0]["measure"]]
    header = ["attention"]
    for name in names:
        header += [name, NOTHING if seconds is None else f"after {seconds:.0f} s"]
    header += [f"minus {models.WINDOW}", "seeds", "ms a step", "state", "parameters"]
    lines = []
    for row, same in by(runs, "row"):
        line = [row]
        for part in range(len(names)):
            last = statistics.mean(run["curve"][-1][3 + part] for run in same)
            line += [f"{last:.3f}", at_equal_time(same, seconds, part)]
        counts = (f"{same[0][name]:,}" for name in ("state", "parameters"))
        difference = minus(same, local) if local else NOTHING
        lines.append([*line, difference, len(same), milliseconds(same), *counts])
    return table(header, lines)
