"""One page of tables."""

import datetime

from benchmarks.learning import times
from benchmarks.learning.report import made_by
from benchmarks.learning.tasks import ENOUGH
from benchmarks.long_range import rows, tables

COSTS = f"""\
A training step of the model of two blocks of 64 units in heads of 16, one sequence,
compiled by XLA, on one thread; here all have the same feed-forward networks, and the
parameters that come of it. MiB are those of the process at its peak above what it
had when all was compiled: of short sequences less, as they find room that compiling
left. Where there is "{tables.NOTHING}" more than 8 GB would be needed: not run."""


def write(runs, folder):
    """Writes `tables.md` of runs, and of the costs in the folder; returns the text.

    Args:
        runs: dicts as `training.train` returns them.
        folder: path; its `costs.json` and its times are read if they are there.
    """
    runs = times.retold(runs, folder)
    costs = times.read(folder / "costs.json")
    parts = ["# Which attention? Tasks of long sequences"]
    if runs:
        parts += [tables.summary(runs), explanation(runs)]
        parts += filter(None, [times.explanation(folder)])
    else:
        parts.append("No runs.")
    for (task, warmed), same in tables.of_tasks(runs):
        parts += [f"## {task}, {tables.WARM_UPS[warmed]}", how(same)]
        parts.append(tables.task_table(same))
    if costs:
        parts += ["## Tokens a second, and memory", COSTS, tables.costs_table(costs)]
    text = "\n\n".join(parts)
    (folder / "tables.md").write_text(text + "\n")
    return text


def how(runs):
    trained = [run for run in runs if run["curve"]]
    if not trained:
        return "No model."
    first = trained[0]
    text = f"{first['steps']:,} steps, window {first['window']}"
    if first["warm_up_steps"]:
        text += f", after {first['warm_up_steps']:,} steps of restoring hidden tokens"
    return f"{text}."


def explanation(runs):
    """How the figures came about."""
    machines, versions, hours = made_by(runs)
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    return f"""\
Accuracy on held-out sequences (bits of the next token for bytes and proteins), means of
seeds ± their standard deviation, at the best of the learning rates below that most
seeds had, by these very sequences. All have the same steps and batches, but that a run
of recall ends once {ENOUGH:.1%} are right; and the same parameters: where attention has
more weights, the feed-forward network has fewer (the tables below show where that does
not suffice).
"{rows.COUNTS}" is a logistic regression on how often each token occurs (of the next
token: how often it comes after the one before), and "{rows.FIRST}" the most frequent
answer for the first token alone: no networks.
A warm-up restores hidden tokens of the task's own inputs before its answers are shown
(arXiv 2310.02980). "Minus exact" is the mean difference from exact attention of the
same seeds, ± its standard error. "After S s" is at equal time: that in which the
fastest row with attention takes all its steps, and that in which exact attention does,
between measurements on a line, without the warm-up. A run that has ended, in recall
often early, keeps its last value; as learning rates fall until the last step, slower
rows are read in the middle of their training.

Where a network does no better than "{rows.COUNTS}" and "{rows.FIRST}", it has been
trained too little to say which attention is better.

{len(runs)} runs, seeds {seeds}, on {machines}, with TensorFlow {versions}; {hours:.1f}
hours, summed over runs; written {datetime.date.today()}."""
