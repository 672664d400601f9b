"""The command and the page of every script here: trains what is missing, reports."""

import functools
import statistics

from benchmarks import runner
from benchmarks.learning import models, study, tasks
from benchmarks.learning.report import at_equal_time, minus, of_row, origin
from benchmarks.learning.study import SEEDS
from benchmarks.learning.tasks import Task
from benchmarks.tables import NOTHING, by, table

# Local attention may take as much time as features do.
LONGER, MORE_STEPS = "3 x the steps", 3
LOCAL = f"{models.WINDOW}, {models.LONG_GATE}"
PERFORMER = f"window + softmax, {models.LONG_GATE}"
# As good as 256 features with head size 16, in less time.
RECOMMENDED = f"{PERFORMER}, 128{models.FEATURES}"
IN_TURN = f"window + softmax, {models.GAINS_IN_TURN}, {models.LONG_GATE}, 128"
IN_TURN += models.FEATURES
EXACT_ROWS = models.EXACT, f"{models.EXACT}, {models.LONG_GATE}"
# The controls, what features add to local attention, and what one exact block adds.
ROWS = (
    *(models.WITHOUT, models.WINDOW, LOCAL, f"{LOCAL}, {LONGER}", *EXACT_ROWS),
    *("window + softmax", PERFORMER, f"window + taylor, {models.LONG_GATE}"),
    *(f"{row}, {models.EXACT_LAST}" for row in (LOCAL, PERFORMER)),
    *(f"{PERFORMER}, {number}{models.FEATURES}" for number in (64, 128)),
    *(IN_TURN, f"window + softmax, 128{models.FEATURES}"),
)
EVALUATIONS = 12
# Two cores have no time for exact attention to more tokens.
EXACT_UP_TO = 4096
# Training begins with sequences of this length, for this share of the steps.
SHORTEST, SHORTEST_SHARE = 256, 3 / 5
# Tokens of a batch, and of local attention in most tasks.
TOKENS, WINDOW = 4096, 64


def main(about, name, make_tasks, full_lengths, argv=None):
    """Reads the command line, trains what is missing and writes the report.

    Args:
        about, name: strs, the documentation of the script and its name.
        make_tasks: function from a length to a list of tasks.
        full_lengths: ints, tokens of a sequence with `--full`; by default the first.
        argv: list of strings, or `None` for those of the process.
    """
    more = dict(lengths=[int], output=runner.RUNS / "long_data" / name)
    options = runner.options(about, argv, {"rows": ROWS}, **study.OPTIONS, **more)
    lengths = options.lengths or (full_lengths if options.full else full_lengths[:1])
    planned = plan([task for length in lengths for task in make_tasks(length)], options)
    study.run(options, planned, write)


def task(name, length, draw, window=WINDOW, **options):
    """Makes a `Task` whose training begins with short sequences, then four times each.

    Args:
        name, length, **options: arguments of `Task`.
        draw: function of "training" or "held out", a length, a random generator and a
            batch size.
        window: int; windows of short tasks are smaller.
    """
    training, held_out = (functools.partial(draw, x) for x in ("training", "held out"))
    lengths, short = [], SHORTEST
    while short < length:
        lengths.append(short)
        short *= 4
    rest = (1 - SHORTEST_SHARE) / max(len(lengths), 1)
    shorter = tuple(
        (functools.partial(training, x), batch_size(x), SHORTEST_SHARE + rest * index)
        for index, x in enumerate(lengths)
    )
    return Task(
        name,
        length,
        min(window, length // 8),
        draw=functools.partial(training, length),
        held_out=tasks.held_out(held_out, length),
        measure="accuracy",
        batch_size=batch_size(length),
        hidden_dim=64,
        position_embedding="rotary",
        enough=tasks.ENOUGH,
        shorter=shorter,
        **options,
    )


def batch_size(length):
    return max(1, TOKENS // length)


def plan(of_lengths, options):
    """Arguments of `training.train`, the first seeds of all tasks first."""
    seeds = options.seeds or (SEEDS if options.full else SEEDS[:1])
    parts = []
    for task in of_lengths:
        has_exact = task.length <= EXACT_UP_TO
        rows = [row for row in ROWS if has_exact or models.EXACT not in row]
        parts.append((task, seeds, rows, (1,)))
    runs = study.planned(parts, options, EVALUATIONS)
    for run in runs:
        run["steps"] *= MORE_STEPS if LONGER in run["row"] else 1
    return runs


def write(runs, folder):
    """Writes `tables.md`, after equal steps and equal time; returns the text."""
    parts = ["# Long real data"]
    parts += [explanation(runs)] if runs else ["No runs."]
    for task, same in by(with_steps(runs), "task"):
        steps = min(run["steps"] for run in same)
        about = f"{steps:,} steps, head size {same[0]['key_dim']}, window "
        parts += [f"## {task}\n\n{about}{same[0]['window']}.", task_table(same)]
    return runner.write_page(folder, parts)


def with_steps(runs):
    """Returns runs whose row names the steps, if the task's fewest steps are others."""
    fewest = {
        task: min(run["steps"] for run in same) for task, same in by(runs, "task")
    }
    return [
        run
        if LONGER in run["row"] or run["steps"] == fewest[run["task"]]
        else {**run, "row": f"{run['row']}, {run['steps']:,} steps"}
        for run in runs
    ]


def explanation(runs):
    return f"""\
Means over seeds, of held-out data. All rows of a task have the same batches, learning
rate and, to 1 %, parameters, and the same steps but for "{LONGER}" and rows that name
their steps. They begin with short sequences. Less is better in bits, more in accuracy.
Seconds are of training, on one core. "After S s" is at equal time, all seconds of
"{RECOMMENDED}", or of "{PERFORMER}" if that was not run: values between two
measurements are interpolated, and a row that has ended keeps its last value. "Minus
{models.WINDOW}" is the mean difference from local attention of the same seeds in the
first column, ± its standard error. "{models.WINDOW}" is local attention; what it has
beside it are features. With "{models.EXACT_LAST}" the second of two blocks is exact.

{origin(runs)}"""


def task_table(runs):
    """Returns a table with a line for each attention in one task."""
    performer = of_row(runs, RECOMMENDED) or of_row(runs, PERFORMER)
    seconds = seconds_of(performer) if performer else None
    local = of_row(runs, models.WINDOW)
    after = NOTHING if seconds is None else f"after {seconds:.0f} s"
    header = ["attention", runs[0]["measure"], after, f"minus {models.WINDOW}"]
    header += ["seeds", "seconds", "state", "parameters"]
    lines = []
    for row, same in by(runs, "row"):
        last = statistics.mean(run["curve"][-1][3] for run in same)
        line = [row, f"{last:.3f}", at_equal_time(same, seconds)]
        counts = (f"{same[0][name]:,}" for name in ("state", "parameters"))
        difference = minus(same, local) if local else NOTHING
        line += [difference, len(same), f"{seconds_of(same):.0f}", *counts]
        lines.append(line)
    return table(header, lines)


def seconds_of(runs):
    """Seconds of training, the mean of runs."""
    return statistics.mean(run["curve"][-1][1] for run in runs)
