"""Tables and learning curves from the runs."""

import statistics

import numpy as np
from matplotlib.figure import Figure

from benchmarks.learning import rows
from benchmarks.tables import table

COLORS = {rows.WITHOUT: "#8a8a8a", rows.EXACT: "#222222", rows.WINDOW: "#d1701c"}


def write(runs, folder):
    """Writes `tables.md` and `curves.png`; returns the tables."""
    text = "\n\n".join(
        f"### {name}\n\n{task_table(of_task)}" for name, of_task in by(runs, "task")
    )
    (folder / "tables.md").write_text(text + "\n")
    if runs:
        draw(runs, folder / "curves.png")
    return text


def task_table(runs):
    """A row for each attention: results of the seeds, and what they cost."""
    first = runs[0]
    cells = []
    for (key_dim, row, rate), same in by(runs, "key_dim", "row", "learning_rate"):
        results = [run["result"] for run in sorted(same, key=lambda run: run["seed"])]
        spread = statistics.stdev(results) if len(results) > 1 else 0.0
        step = statistics.median(run["seconds"] / run["steps"] for run in same)
        state = same[0]["state"]
        cells.append(
            [
                row,
                key_dim,
                f"{rate:.2g}",
                f"{statistics.mean(results):.3f}",
                f"{spread:.3f}",
                " / ".join(f"{result:.3f}" for result in results),
                f"{1e3 * step:.0f}",
                "–" if state is None else f"{state:,}",
                f"{same[0]['parameters']:,}",
            ]
        )
    header = [
        f"window {first['window']}, {first['steps']:,} steps",
        "key_dim",
        "rate",
        "mean",
        "std",
        "seeds",
        "ms a step",
        "state of a layer",
        "parameters",
    ]
    return table(header, cells)


def draw(runs, path):
    """What is measured against steps and against wall time, a row of axes a task."""
    tasks = by(runs, "task")
    figure = Figure(figsize=(10, 3 * len(tasks)), layout="constrained")
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    for (name, of_task), pair in zip(tasks, axes, strict=True):
        for index, (row, same) in enumerate(by(of_task, "row")):
            curves = np.array([run["curve"] for run in same if run["seed"] == 0])
            for curve in curves[:1]:
                color = COLORS.get(row, f"C{index}")
                for axis, column in zip(pair, (0, 1), strict=True):
                    axis.plot(curve[:, column], curve[:, 3], label=row, color=color)
        for axis, label in zip(pair, ("steps", "seconds of training"), strict=True):
            axis.set(title=name, xlabel=label)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def by(runs, *names):
    """Runs grouped by their entries of these names, as they first came."""
    groups = {}
    for run in runs:
        key = tuple(run[name] for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(run)
    return list(groups.items())
