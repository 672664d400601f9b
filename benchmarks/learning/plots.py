"""Learning curves, and what is recalled with a state of what size."""

import math

from matplotlib.figure import Figure

from benchmarks.learning import curves, rows, tables

# Of what comes before the first comma of a row.
COLORS = {
    rows.WITHOUT: "#8a8a8a",
    rows.EXACT: "#222222",
    rows.WINDOW: "#d1701c",
    "softmax": "#3b6fb6",
    "taylor": "#2a8c5a",
    "window + softmax": "#8fb8e8",
    "window + taylor": "#7fcf9f",
}
OTHER_COLOR = "#b04a9f"
# Of its last option: how a line is dashed, and a marker.
STYLES = {
    "high gain": ("--", "^"),
    "low gain": (":", "v"),
    rows.CONV: ("--", "P"),
    rows.EXACT_LAST: ("-.", "X"),
    rows.REDRAW: ("--", "*"),
    "qk_norm": ((0, (5, 1, 1, 1, 1, 1)), "D"),
}
# Without an option markers tell of the size of heads.
MARKERS = {16: "o", 32: "s", 64: "p"}
# What is drawn of tasks with more rows than can be told apart.
DRAWN, MOST_ROWS = (*rows.ROWS, "window + softmax, high gain"), 12
COLUMNS = 2
BESIDE = dict(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)


def draw_curves(runs, path):
    """What is measured against steps and against wall time, a row of axes a task.

    Lines are means over seeds, the areas around them go from the least to the most.
    """
    key_dim = min(run["key_dim"] for run in runs)
    tasks = tables.by([run for run in runs if run["key_dim"] == key_dim], "task")
    figure = Figure(figsize=(11, 3.2 * len(tasks)), layout="constrained")
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    for (name, of_task), pair in zip(tasks, axes):
        for row, same in tables.by(drawn(of_task), "row"):
            steps, seconds, values = curves.of_seeds(tables.best(same))
            dashes, _ = style_of(row)
            for axis, times in zip(pair, (steps, seconds)):
                axis.plot(times, values.mean(0), ls=dashes, color=color(row), label=row)
                area = values.min(0), values.max(0)
                axis.fill_between(times, *area, alpha=0.12, lw=0, color=color(row))
        for axis, label in zip(pair, ("steps", "seconds of training")):
            axis.set(title=name, xlabel=label, ylabel=of_task[0]["measure"])
            axis.grid(alpha=0.3)
        pair[1].legend(**BESIDE)
    figure.savefig(path, dpi=100)


def draw_states(runs, path):
    """How much of a recall task is answered, against the numbers that a layer keeps."""
    tasks = [
        (name, drawn([run for run in of_task if run["state"]]))
        for name, of_task in tables.by(runs, "task")
        if name.startswith("recall")
    ]
    # one attention is not to be compared
    tasks = [pair for pair in tasks if len(tables.by(pair[1], "row")) > 1]
    if not tasks:
        return
    width, height = min(len(tasks), COLUMNS), math.ceil(len(tasks) / COLUMNS)
    figure = Figure(figsize=(5.5 * width, 3.2 * height), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False).ravel()
    for axis in axes[len(tasks) :]:
        axis.remove()
    for (name, of_task), axis in zip(tasks, axes):
        for (row, key_dim), same in tables.by(of_task, "row", "key_dim"):
            accuracy = tables.mean_result(tables.best(same))
            _, marker = style_of(row, key_dim)
            label = f"{row}, {key_dim}"
            axis.plot(same[0]["state"], accuracy, marker, color=color(row), label=label)
        axis.set(title=name, xlabel="numbers in the state of a layer")
        axis.set_xscale("log", base=2)
        axis.set(ylabel="accuracy", ylim=(-0.05, 1.1))
        axis.grid(alpha=0.3)
        axis.legend(**BESIDE, title="attention, key_dim", title_fontsize=8)
    figure.savefig(path, dpi=100)


def drawn(runs):
    """Runs whose rows can be told apart, of one task."""
    if len(tables.by(runs, "row")) <= MOST_ROWS:
        return runs
    return [run for run in runs if run["row"] in DRAWN]


def style_of(row, key_dim=None):
    return STYLES.get(row.split(", ")[-1], ("-", MARKERS.get(key_dim, "o")))


def color(row):
    return COLORS.get(row.split(", ")[0], OTHER_COLOR)
