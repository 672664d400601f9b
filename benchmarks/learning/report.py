"""Writes a page of tables."""

import datetime
import math
import statistics

import numpy as np

from benchmarks import runner
from benchmarks.learning import models, times
from benchmarks.learning.tasks import ENOUGH
from benchmarks.tables import NOTHING, by, table

LEARNED = 0.9
LEARNED_AFTER = f"{LEARNED:.0%} after"

EXPLANATION = f"""\
"window" is `LocalAttention`; "softmax", "taylor" and "relu" are `PerformerAttention`
with that feature map, "window + ..." the same with an exact window; "gate" is a forget
gate. The initial log-gain of far keys is 0, with "high gain" 2, and with "gains in
turn" -4 and 2 in turns, from head to head.

Means over seeds ± their standard deviation, at the best of the learning rates that most
had, by these very sequences. All rows of a task have the same batches and steps, and
nearly the same parameters: without attention the feed-forward network is wider, and
where attention has more weights, it is narrower, as far as that suffices. Results are
of held-out sequences; in bits, less is better. A run of recall or needle ends when
{ENOUGH:.1%} of the questions are answered; its last value counts.

"Minus exact" is the mean difference from exact attention of the same seeds, ± its
standard error. "After S s" is at equal time: that in which the fastest row with
attention takes all its steps, between measurements on a line. A run that has ended
keeps its last value."""


def write(runs, folder):
    """Writes `tables.md` from dicts of `training.train`, in the order of the plan."""
    about = "The seed of digits is the fold that is held out."
    parts = sections("# Does it learn?", runs, folder, models.ROWS, about)
    return runner.write_page(folder, parts)


def sections(title, runs, folder, rows, about, left_out=(), also=()):
    """Returns the parts of a page: a summary, explanations, and a table of each task.

    Args:
        title: str.
        runs: list of dicts of `training.train`, in the order of the plan.
        folder: path of the page, with the times of steps if there are any.
        rows: names of the attentions in the summary, in their order.
        about: str, what the page explains beside `explanation`.
        left_out: names of columns that the tables of tasks do not have.
        also: rows in whose time results are compared, beside the fastest attention's.
    """
    if not runs:
        return [title, "No runs."]
    runs = times.retold(runs, folder)
    parts = [title, summary(runs, rows), EXPLANATION, about, origin(runs)]
    parts.append(times.explanation(folder))
    for (name, key_dim), same in by(runs, "task", "key_dim"):
        # a stored baseline without a network has no steps
        model = max(same, key=lambda run: run["steps"])
        window, steps = model["window"], model["steps"]
        sizes = f"key_dim {key_dim}, window {window}, {steps:,} steps."
        seconds = equal_time(same), *(equal_time(of_row(same, row)) for row in also)
        parts += [f"## {name}\n\n{sizes}", task_table(same, seconds, left_out)]
    return parts


def origin(runs):
    """Returns a sentence about seeds, machines and hours of runs."""
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    machines, versions = (
        " and ".join(dict.fromkeys(run[name] for run in runs))
        for name in ("machine", "tensorflow")
    )
    hours = sum(run["seconds_in_all"] for run in runs) / 3600
    return f"""\
{len(runs)} runs, seeds {seeds}, on {machines}, with TensorFlow {versions}; {hours:.1f}
hours, summed over runs; written {datetime.date.today()}."""


def summary(runs, rows):
    """Returns tables of the result and the time of each attention in each task."""
    key_dim = min(run["key_dim"] for run in runs)
    of_size = [run for run in runs if run["key_dim"] == key_dim]
    tasks = by(of_size, "task")
    there = {run["row"] for run in of_size}
    results, steps = [], []
    for row in rows:
        if row in there:
            of_tasks = [(best(of_row(same, row)), same) for _, same in tasks]
            results.append([row, *(with_spread(*both) for both in of_tasks)])
            steps.append([row, *(milliseconds(of_task) for of_task, _ in of_tasks)])
    measured = [f"{name}, {same[0]['measure']}" for name, same in tasks]
    tables = [
        table([f"key_dim {key_dim}", *measured], results),
        table(["milliseconds a step", *(name for name, _ in tasks)], steps),
    ]
    return "\n\n".join(tables)


def of_row(runs, row):
    return [run for run in runs if run["row"] == row]


def task_table(runs, seconds, left_out=()):
    """Returns a table of results and costs in one task, by attention and learning rate.

    Args:
        runs: list of dicts, with the `"curve"` empty if no network was trained.
        seconds: list of times at which to compare, as `equal_time` returns them.
        left_out: names of columns that the table does not have.
    """
    exact = best(of_row(runs, models.EXACT))

    def after(some):
        name = NOTHING if some is None else f"after {some:.0f} s"
        return name, lambda same: at_equal_time(same, some)

    columns = [
        ("attention", lambda same: same[0]["row"]),
        ("rate", lambda same: short(same[0]["learning_rate"])),
        (f"{runs[0]['measure']}, mean", lambda same: f"{mean_result(same):.3f}"),
        ("std", lambda same: f"{deviation(same):.3f}"),
        ("seeds", each_result),
        ("minus exact", lambda same: minus(same, exact)),
        *map(after, seconds),
        ("ms a step", milliseconds),
        ("state of a layer", lambda same: count(same[0]["state"])),
        ("parameters", lambda same: count(same[0]["parameters"])),
    ]
    if runs[0]["measure"] == "accuracy":
        columns.append((LEARNED_AFTER, steps_to_learn))
    columns = [(name, cell) for name, cell in columns if name not in left_out]
    lines = [
        [cell(same) for _, cell in columns]
        for _, of_rates in by(runs, "row")
        for _, same in by(of_rates, "learning_rate")
    ]
    return table([name for name, _ in columns], lines)


def short(rate):
    return NOTHING if rate is None else f"{rate:.2g}"


def count(x):
    return NOTHING if x is None else f"{x:,}"


def each_result(runs):
    results = (run["result"] for run in sorted(runs, key=lambda run: run["seed"]))
    return " / ".join(f"{result:.3f}" for result in results)


def deviation(runs):
    results = [run["result"] for run in runs]
    return statistics.stdev(results) if len(results) > 1 else 0.0


def steps_to_learn(runs):
    """Formats the median steps until `LEARNED` was measured."""
    needed = statistics.median(
        next((point[0] for point in run["curve"] if point[3] >= LEARNED), math.inf)
        for run in runs
    )
    return "never" if math.isinf(needed) else f"{needed:,.0f} steps"


def with_spread(runs, of_task):
    """Formats mean, standard deviation, and number of seeds if some are missing."""
    if not runs:
        return NOTHING
    text = f"{mean_result(runs):.3f}"
    if len(runs) > 1:
        text += f" ± {deviation(runs):.3f}"
    complete = len(runs) == len({run["seed"] for run in of_task})
    return text if complete else f"{text} (n = {len(runs)})"


def best(runs):
    """Returns runs with the best learning rate, among rates with the most seeds."""
    groups = [same for _, same in by(runs, "learning_rate")]
    if not groups:
        return []
    most = max(map(len, groups))
    choose = max if runs[0]["measure"] == "accuracy" else min
    return choose((same for same in groups if len(same) == most), key=mean_result)


def mean_result(runs):
    return statistics.mean(run["result"] for run in runs)


def minus(runs, others):
    """Formats the mean difference of runs with equal seeds, and its standard error."""
    results = {run["seed"]: run["result"] for run in others}
    pairs = [(run["result"], results.get(run["seed"])) for run in runs]
    differences = [a - b for a, b in pairs if b is not None]
    if not differences or runs[0]["row"] == others[0]["row"]:
        return NOTHING
    text = f"{statistics.mean(differences):+.3f}"
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        text += f" ± {error:.3f}"
    return text


# A curve is a list of `(steps, seconds, loss, measured)` as in `training.train`.


def at_equal_time(runs, seconds):
    """Formats the mean result of runs at a time, by linear interpolation.

    A run that has ended keeps its last value; before its first there is no result.
    """
    if seconds is None or any(math.isnan(seconds_of_step(run)) for run in runs):
        return NOTHING
    curves = [np.array(run["curve"]) for run in runs]
    values = [np.interp(seconds, c[:, 1], c[:, 3], left=math.nan) for c in curves]
    mean = statistics.mean(map(float, values))
    return NOTHING if math.isnan(mean) else f"{mean:.3f}"


def equal_time(runs):
    """Returns the seconds in which the fastest attention takes all its steps.

    This is the mean over seeds of the fastest row, or `None` without attention. If a
    run reached `Task.enough` and ended, its time is extrapolated to all steps.
    """
    runs = [run for run in runs if not run["row"].startswith(models.WITHOUT)]
    seconds = (
        statistics.mean(seconds_of_step(run) * run["steps"] for run in same)
        for _, same in by(runs, "row")
    )
    return min((x for x in seconds if not math.isnan(x)), default=None)


def seconds_of_step(run):
    """Returns the mean seconds of a step; nan without a network, or without times."""
    steps, seconds, *_ = run["curve"][-1] if run["curve"] else (1, math.nan)
    return seconds / steps


def milliseconds(runs):
    if not runs:
        return NOTHING
    seconds = statistics.median(map(seconds_of_step, runs))
    return NOTHING if math.isnan(seconds) else f"{1e3 * seconds:.0f}"
