"""Learning curves, and what is recalled with a state of what size."""

from matplotlib.figure import Figure

from benchmarks.learning import rows, tables

COLORS = {
    rows.WITHOUT: "#8a8a8a",
    rows.EXACT: "#222222",
    rows.WINDOW: "#d1701c",
    "softmax": "#3b6fb6",
    "taylor": "#2a8c5a",
    "window + softmax": "#8fb8e8",
    "window + taylor": "#7fcf9f",
}


def draw_curves(runs, path):
    """What is measured against steps and against wall time, a row of axes a task."""
    key_dim = min(run["key_dim"] for run in runs)
    tasks = tables.by([run for run in runs if run["key_dim"] == key_dim], "task")
    figure = Figure(figsize=(10, 3 * len(tasks)), layout="constrained")
    axes = figure.subplots(len(tasks), 2, squeeze=False)
    for (name, of_task), pair in zip(tasks, axes):
        for row, same in tables.by(of_task, "row"):
            for index, run in enumerate(tables.best(same)):
                steps, seconds, _, measured = zip(*run["curve"])
                label = None if index else row
                for axis, times in zip(pair, (steps, seconds)):
                    axis.plot(times, measured, lw=1, color=COLORS.get(row), label=label)
        pair[0].set_ylabel(of_task[0]["measure"])
        for axis, label in zip(pair, ("steps", "seconds of training")):
            axis.set(title=f"{name}, key_dim {key_dim}", xlabel=label)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def draw_states(runs, path):
    """How much of a recall task is answered, against the numbers that a layer keeps."""
    tasks = tables.by([run for run in runs if run["task"].startswith("recall")], "task")
    if not tasks:
        return
    figure = Figure(figsize=(5 * len(tasks), 4), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for (name, of_task), axis in zip(tasks, axes):
        for (row, key_dim), same in tables.by(of_task, "row", "key_dim"):
            size, accuracy = same[0]["state"], tables.mean_result(tables.best(same))
            if not size:  # nothing that a logarithm could show
                continue
            axis.plot(size, accuracy, "o", color=COLORS.get(row))
            axis.annotate(f"{row}, {key_dim}", (size, accuracy), fontsize=7)
        axis.set(title=name, xlabel="numbers in the state of a layer", xscale="log")
        axis.set(ylabel="accuracy", ylim=(-0.05, 1.1))
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
