"""What attentions reach in the time that they take, from runs of `long_range`."""

import json
import pathlib
import statistics

from benchmarks.learning import times
from benchmarks.learning.report import best, mean_result, seconds_of_step
from benchmarks.long_range import __main__ as command
from benchmarks.long_range import models
from benchmarks.tables import by
from docs.pictures import style

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks/results/long_range"
# Dots of the picture, as rows are called there.
DOTS = {
    models.WITHOUT: ("no attention", style.CONTROL),
    models.WINDOW: ("window alone", style.INK),
    models.EXACT: ("exact", style.EXACT),
    models.PERFORMER: ("Performer, window", style.FURTHER[2]),
    models.GAINS: ("Performer, gains", style.OURS),
    "Big Bird": ("Big Bird", style.FURTHER[0]),
    "Linear Transformer": ("Linear Transf.", style.FURTHER[1]),
}
COSTS_OF = {models.GAINS: models.PERFORMER}  # the same work
TOKENS = "4096"  # of the costs that dots are large by
AREA = 0.35  # square points for each MiB


def main():
    lines = (FOLDER / "runs.jsonl").read_text().splitlines()
    runs = times.retold(map(json.loads, lines), FOLDER)
    runs = [run for run in runs if not run["warm_up_steps"]]
    costs = json.loads((FOLDER / "costs.json").read_text())
    tasks, of_tasks = command.core(), dict(by(runs, "task"))
    figure, axes = style.panels(len(tasks), height=3.1)
    for panel, task in zip(axes, tasks):
        trained = dict(by(of_tasks[task.name], "row"))
        for row, (label, colour) in DOTS.items():
            same = best(trained[row])
            size = AREA * costs[COSTS_OF.get(row, row)][TOKENS]["bytes"] / 2**20
            panel.scatter(
                1e3 * statistics.median(map(seconds_of_step, same)),
                mean_result(same),
                s=size,
                color=colour,
                alpha=0.8,
                label=label,
                clip_on=False,
                zorder=3 - size / 1e4,  # small ones on large ones
            )
        panel.margins(0.15)
        style.tidy(panel, task.name, "ms a step")
        panel.set_xlim(0)
        panel.set_ylabel(task.measure, color=style.INK, fontsize=10)
        if task.measure == "accuracy":
            panel.set_ylim(0, 1.08)
        else:
            panel.invert_yaxis()  # fewer bits are better: up, as in the others
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        columnspacing=1.0,
    )
    for handle in legend.legend_handles:
        handle.set_sizes([60])
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
