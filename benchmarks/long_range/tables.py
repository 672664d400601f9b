"""The tables of the report, in Markdown."""

import statistics

from benchmarks.learning import curves
from benchmarks.learning.tables import (
    at_equal_time,
    best,
    by,
    mean_result,
    milliseconds,
    minus,
    with_count,
)
from benchmarks.long_range import rows
from benchmarks.tables import NOTHING, table

# Of a row without a network.
NO_TRAINING = (NOTHING,) * 4
# What a model is trained for: the task alone, or its inputs first.
WARM_UPS = {False: "alone", True: "after a warm-up"}


def summary(runs):
    """What each attention reaches in each task, alone and after a warm-up."""
    columns, cells = [], {}
    for (task, warmed), same in of_tasks(runs):
        columns.append(f"{task}{', warmed up' if warmed else ''}")
        num_seeds = len({run["seed"] for run in same})
        for row, of_row in by(same, "row"):
            cells[row, columns[-1]] = with_spread(best(of_row), num_seeds)
    lines = [
        [row, *(cells.get((row, column), NOTHING) for column in columns)]
        for row in ordered(runs)
    ]
    return table(["attention", *columns], lines)


def of_tasks(runs):
    """Runs of a task alone, then after a warm-up, task by task."""
    groups = []
    for task, same in by(runs, "task"):
        for warmed in WARM_UPS:
            of_kind = [run for run in same if bool(run["warm_up_steps"]) == warmed]
            if of_kind:
                groups.append(((task, warmed), of_kind))
    return groups


def ordered(runs):
    """The rows that there are, in the order of `rows.ROWS`."""
    there = {run["row"] for run in runs}
    return [row for row in rows.ROWS if row in there]


def with_spread(runs, num_seeds):
    """The mean of seeds, their standard deviation, and how many if some are missing."""
    results = [run["result"] for run in runs]
    text = f"{statistics.mean(results):.3f}"
    if len(results) > 1:
        text += f" ± {statistics.stdev(results):.3f}"
    return with_count(text, runs, num_seeds)


def task_table(runs):
    """A line for each attention: results, and what they cost.

    Args:
        runs: of one task, alone or after a warm-up.
    """
    trained = [run for run in runs if run["curve"]]
    of_exact = [run for run in trained if run["row"] == rows.EXACT]
    seconds = curves.equal_time(trained), curves.equal_time(of_exact)
    exact = best([run for run in runs if run["row"] == rows.EXACT])
    lines = []
    for row in ordered(runs):
        for rate, same in by([r for r in runs if r["row"] == row], "learning_rate"):
            results = sorted((run["seed"], run["result"]) for run in same)
            lines.append(
                [
                    row,
                    NOTHING if rate is None else f"{rate:.2g}",
                    f"{mean_result(same):.3f}",
                    " / ".join(f"{result:.3f}" for _, result in results),
                    minus(same, exact),
                    *(of_training(same, seconds) if same[0]["curve"] else NO_TRAINING),
                ]
            )
    header = [
        "attention",
        "rate",
        f"{runs[0]['measure']}, mean",
        "seeds",
        "minus exact",
        *(NOTHING if s is None else f"after {s:.0f} s" for s in seconds),
        "ms a step",
        "parameters",
    ]
    return table(header, lines)


def of_training(runs, seconds):
    parameters = f"{runs[0]['parameters']:,}"
    values = (at_equal_time(runs, some) for some in seconds)
    return *values, milliseconds(runs), parameters


def costs_table(costs):
    """Tokens a second and memory of a training step, by length.

    Args:
        costs: dict as `costs.complete` returns it.
    """
    lengths = sorted(
        {int(n) for of_row in costs.values() for n in of_row if n.isdigit()}
    )
    there = [row for row in rows.ROWS if row in costs]
    lines = []
    for row in there:
        cells = [costs[row].get(str(length)) for length in lengths]
        speeds = [NOTHING if c is None else f"{c['tokens_a_second']:,}" for c in cells]
        sizes = [NOTHING if c is None else f"{c['bytes'] / 2**20:,.0f}" for c in cells]
        lines.append([row, *speeds, *sizes])
    header = ["attention", *(f"{n:,} tokens" for n in lengths)]
    return table([*header, *(f"{n:,}: MiB" for n in lengths)], lines)
