"""Writes a page of tables."""

from benchmarks import runner
from benchmarks.learning import times
from benchmarks.learning.report import (
    LEARNED_AFTER,
    best,
    deviation,
    equal_time,
    mean_result,
    of_row,
    opening,
    origin,
    task_table,
    with_count,
)
from benchmarks.learning.tasks import ENOUGH
from benchmarks.long_range import models
from benchmarks.tables import NOTHING, by, table

LEFT_OUT = "std", "state of a layer", LEARNED_AFTER

COSTS = f"""\
A training step of the model of two blocks of 64 units, head size 16, one sequence,
as in `fit` on a CPU, where layers compile themselves, on one thread; here all have the
same feed-forward networks, and the parameters that come of it. MiB are those of the
process at its peak above what it had when all was compiled: of short sequences less, as
they find room that compiling left. Where there is "{NOTHING}" more than 8 GB would be
needed: not run."""


def write(runs, folder):
    """Writes `tables.md` from runs and the folder's costs; returns the text."""
    runs = times.retold(runs, folder)
    title = "# Which attention? Tasks of long sequences"
    parts = opening(title, runs, folder, summary, explanation)
    for task, same in by(runs, "task"):
        parts += [f"## {task}", how(same)]
        same = sorted(same, key=lambda run: models.ROWS.index(run["row"]))
        seconds = equal_time(same), equal_time(of_row(same, models.EXACT))
        parts.append(task_table(same, seconds, LEFT_OUT))
    costs = runner.read(folder / "costs.json")
    if costs:
        parts += ["## Tokens a second, and memory", COSTS, costs_table(costs)]
    return runner.write_page(folder, parts)


def how(runs):
    trained = [run for run in runs if run["curve"]]
    if not trained:
        return "No model."
    first = trained[0]
    return f"{first['steps']:,} steps, window {first['window']}."


def explanation(runs):
    """Returns text about the origin of the figures."""
    return f"""\
"window" is `LocalAttention`; "Performer" is `PerformerAttention`, "Performer, window"
the same with an exact window.

Accuracy on held-out sequences (bits of the next token for bytes), means of seeds
± their standard deviation, at the best of the learning rates below that most seeds
had, by these very sequences. All have the same steps and batches, but that a run
of recall ends once {ENOUGH:.1%} are right; and the same parameters: where attention has
more weights, the feed-forward network has fewer (the tables below show where that does
not suffice).
"{models.COUNTS}" is a logistic regression on how often each token occurs (of the next
token: how often it comes after the one before): no network.
"Minus exact" is the mean difference from exact attention of the same seeds, ± its
standard error. "After S s" is at equal time: that in which the fastest row with
attention takes all its steps, and that in which exact attention does, between
measurements on a line. A run that has ended, in recall often early, keeps its last
value; as learning rates fall until the last step, slower rows are read in the middle of
their training.

Where a network does no better than "{models.COUNTS}", it has been trained too little to
say which attention is better.

{origin(runs)}"""


def summary(runs):
    """Returns a table of results by attention and task."""
    columns, cells = [], {}
    for task, same in by(runs, "task"):
        columns.append(task)
        num_seeds = len({run["seed"] for run in same})
        for row, runs_of_row in by(same, "row"):
            cells[row, task] = with_spread(best(runs_of_row), num_seeds)
    lines = [
        [row, *(cells.get((row, column), NOTHING) for column in columns)]
        for row in ordered(runs)
    ]
    return table(["attention", *columns], lines)


def ordered(runs):
    """Returns the rows that runs have, in the order of `models.ROWS`."""
    there = {run["row"] for run in runs}
    return [row for row in models.ROWS if row in there]


def with_spread(runs, num_seeds):
    """Formats mean, standard deviation, and number of seeds if some are missing."""
    text = f"{mean_result(runs):.3f}"
    if len(runs) > 1:
        text += f" ± {deviation(runs):.3f}"
    return with_count(text, runs, num_seeds)


def costs_table(costs):
    """Returns a table of tokens a second and memory of a training step, by length."""
    lengths = sorted(
        {int(n) for of_row in costs.values() for n in of_row if n.isdigit()}
    )
    there = [row for row in models.ROWS if row in costs]
    lines = []
    for row in there:
        cells = [costs[row].get(str(length)) for length in lengths]
        speeds = [NOTHING if c is None else f"{c['tokens_a_second']:,}" for c in cells]
        sizes = [NOTHING if c is None else f"{c['bytes'] / 2**20:,.0f}" for c in cells]
        lines.append([row, *speeds, *sizes])
    header = ["attention", *(f"{n:,} tokens" for n in lengths)]
    return table([*header, *(f"{n:,}: MiB" for n in lengths)], lines)
