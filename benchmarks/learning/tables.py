"""The tables of the report, in Markdown."""

import math
import statistics

from benchmarks.learning import curves, rows, swap
from benchmarks.tables import NOTHING, table

LEARNED = 0.9


def summary(runs):
    """What each attention reaches in each task, and its time; of the smallest heads."""
    key_dim = min(run["key_dim"] for run in runs)
    of_size = [run for run in runs if run["key_dim"] == key_dim]
    results, times = [], []
    for name, of_task in by(of_size, "task"):
        num_seeds = len({run["seed"] for run in of_task})
        of_rows = [
            best([run for run in of_task if run["row"] == row]) for row in rows.ROWS
        ]
        label = f"{name}, {of_task[0]['measure']}"
        results.append([label, *(mean_of(same, num_seeds) for same in of_rows)])
        times.append([name, *map(milliseconds, of_rows)])
    return "\n\n".join(
        table([what, *rows.ROWS], lines)
        for what, lines in (
            (f"key_dim {key_dim}", results),
            ("milliseconds a step", times),
        )
    )


def mean_of(runs, num_seeds):
    """The mean, with the number of seeds if some are missing."""
    if not runs:
        return NOTHING
    return with_count(f"{mean_result(runs):.3f}", runs, num_seeds)


def with_count(text, runs, num_seeds):
    """What is said of runs, with the number of seeds if some are missing."""
    return text if len(runs) == num_seeds else f"{text} (n = {len(runs)})"


def best(runs):
    """Those of the learning rate with the best mean result, of rates of most seeds."""
    groups = [same for _, same in by(runs, "learning_rate")]
    if not groups:
        return []
    most = max(map(len, groups))
    choose = max if runs[0]["measure"] == "accuracy" else min
    return choose((same for same in groups if len(same) == most), key=mean_result)


def task_table(runs):
    """A row for each attention: results of the seeds, and what they cost.

    Args:
        runs: those of one task and one `key_dim`.
    """
    is_accuracy = runs[0]["measure"] == "accuracy"
    seconds = curves.equal_time(runs)
    exact = best([run for run in runs if run["row"] == rows.EXACT])
    lines = []
    for (row, rate), same in by(runs, "row", "learning_rate"):
        results = [run["result"] for run in sorted(same, key=lambda run: run["seed"])]
        spread = statistics.stdev(results) if len(results) > 1 else 0.0
        state = same[0]["state"]
        line = [
            row,
            f"{rate:.2g}",
            f"{mean_result(same):.3f}",
            f"{spread:.3f}",
            " / ".join(f"{result:.3f}" for result in results),
            minus(same, exact),
            at_equal_time(same, seconds),
            milliseconds(same),
            NOTHING if state is None else f"{state:,}",
            f"{same[0]['parameters']:,}",
        ]
        if is_accuracy:
            line.append(when_learned(same))
        lines.append(line)
    header = [
        "attention",
        "rate",
        f"{runs[0]['measure']}, mean",
        "std",
        "seeds",
        "minus exact",
        "at equal time" if seconds is None else f"after {seconds:.0f} s",
        "ms a step",
        "state of a layer",
        "parameters",
    ]
    if is_accuracy:
        header.append(f"{LEARNED:.0%} after")
    return table(header, lines)


def minus(runs, others):
    """The mean difference of runs of the same seeds, with its standard error."""
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


def at_equal_time(runs, seconds):
    if seconds is None:
        return NOTHING
    value = statistics.mean(curves.value_at(run, seconds) for run in runs)
    return NOTHING if math.isnan(value) else f"{value:.3f}"


def when_learned(runs):
    steps = statistics.median(curves.steps_to_reach(run, LEARNED) for run in runs)
    return "never" if math.isinf(steps) else f"{steps:,.0f} steps"


def mean_result(runs):
    return statistics.mean(run["result"] for run in runs)


def milliseconds(runs):
    if not runs:
        return NOTHING
    return f"{1e3 * statistics.median(map(curves.seconds_of_step, runs)):.0f}"


def swap_table(runs):
    """Bits that exact models lose; "" if there are none.

    Args:
        runs: of any tasks.
    """
    swapped = [run for run in runs if run.get("swap")]
    groups = by(swapped, "task", "key_dim")
    lines = []
    for row in swap.SWAPPED:
        line = [row]
        for _, same in groups:
            # an early run may lack a row
            lost = [run["swap"][row] for run in best(same) if row in run["swap"]]
            seeds = " / ".join(f"{bits:.3f}" for bits in lost)
            line.append(f"{statistics.mean(lost):.3f} ({seeds})" if lost else NOTHING)
        lines.append(line)
    header = ["bits lost", *(f"{task}, key_dim {size}" for (task, size), _ in groups)]
    return table(header, lines) if groups else ""


def by(runs, *names):
    """Runs grouped by their entries of these names, as they first came."""
    groups = {}
    for run in runs:
        key = tuple(run[name] for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(run)
    return list(groups.items())
