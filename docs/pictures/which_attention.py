"""Accuracy against the time of training, with memory as the size of a dot."""

import json
import statistics

from docs.pictures import style, tables

FOLDER = tables.ROOT / "benchmarks" / "results" / "long_range"
TASKS = {
    "ListOps 512": "ListOps, 512 tokens",
    "bytes 1,024": "bytes, 1,024",
    "digits 256": "pixels of digits, 256",
}
COLOURS = {
    "no attention": style.CONTROL,
    "exact": style.EXACT,
    "window": style.FURTHER[0],
    "Performer, window": style.OURS,
    "Performer": "#6fa8dc",
    "Big Bird": style.FURTHER[1],
    "Linear Transformer": style.FURTHER[2],
}
OTHERS = "#b9b9b9"
# What a dot's area says: memory at so many tokens, in square points for a MiB.
TOKENS, AREA = "4096", 0.15


def main():
    lines = (FOLDER / "runs.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["curve"]]
    costs = json.loads((FOLDER / "costs.json").read_text())
    figure, axes = style.panels(columns=len(TASKS), height=3.4)
    for (task, title), ax in zip(TASKS.items(), axes):
        for row in dict.fromkeys(run["row"] for run in runs):
            same = [
                run
                for run in runs
                if (run["task"], run["row"], run["warm_up_steps"]) == (task, row, 0)
            ]
            if same:
                draw(ax, row, same, costs[row][TOKENS]["bytes"] / 2**20)
        style.tidy(ax, title, "seconds of training", None)
        ax.margins(0.15)
    axes[0].set_ylabel("accuracy", color=style.INK, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    style.save(figure, __file__)


def draw(axes, row, runs, mib):
    """A dot for the mean of seeds, on a line from the least to the most."""
    seconds = statistics.mean(run["seconds"] for run in runs)
    results = [run["result"] for run in runs]
    colour = COLOURS.get(row, OTHERS)
    axes.plot([seconds] * 2, [min(results), max(results)], color=colour, lw=1)
    axes.scatter(
        seconds,
        statistics.mean(results),
        s=AREA * mib,
        color=colour,
        alpha=0.8,
        label=row if row in COLOURS else None,
    )


if __name__ == "__main__":
    main()
