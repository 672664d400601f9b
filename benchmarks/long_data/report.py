"""Tables of the runs of one script: after equal steps, and after equal time."""

import datetime
import statistics

from benchmarks.learning import models, times
from benchmarks.learning.report import (
    at_equal_time,
    equal_time,
    made_by,
    milliseconds,
    minus,
)
from benchmarks.tables import NOTHING, by, table


def write(runs, folder):
    """Writes `tables.md`; returns the text.

    Args:
        runs: dicts as `learning.training.train` returns them.
        folder: path; its times are read if they are there.
    """
    runs = times.retold(runs, folder)
    parts = ["# Long real data"]
    if runs:
        parts += [explanation(runs), *filter(None, [times.explanation(folder)])]
    else:
        parts.append("No runs.")
    for (task, steps), same in by(runs, "task", "steps"):
        about = f"{steps:,} steps, window {same[0]['window']}."
        parts += [f"## {task}\n\n{about}", task_table(same)]
    text = "\n\n".join(parts)
    (folder / "tables.md").write_text(text + "\n")
    return text


def explanation(runs):
    """Explanation of the figures."""
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
    """A line for each attention, with every part of what is measured.

    Args:
        runs: of one task, with equal steps.
    """
    seconds = equal_time(runs)
    local = [run for run in runs if run["row"] == models.WINDOW]
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
        state, parameters = same[0]["state"], same[0]["parameters"]
        line += [
            minus(same, local) if local else NOTHING,
            len(same),
            milliseconds(same),
            f"{state:,}",
            f"{parameters:,}",
        ]
        lines.append(line)
    return table(header, lines)
