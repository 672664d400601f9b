"""Facts that small models find far away, by seconds of training, from `long_data`."""

import json
import pathlib
import statistics

import numpy as np

from benchmarks.long_data import study
from benchmarks.tables import by
from docs.pictures import style

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks/results/long_data"
ROWS = {  # name there, label, colour
    f"{study.LOCAL}, {study.LONGER}": ("LocalAttention", style.INK),
    study.RECOMMENDED: ("PerformerAttention", style.OURS),
    study.EXACT_ROWS[1]: ("ExactAttention", style.EXACT),
}
TASKS = {  # folder, task and title
    ("needles", "needle 4,096 in text, 1 key"): "One fact in 4,096 bytes of code",
    ("documents", "documents 2,048"): "Eight facts in 2,048 words of code",
}


def draw():
    figure, axes = style.panels(rows=len(TASKS), height=5.4)
    style.headline(figure, "PerformerAttention finds what local attention cannot see")
    for panel, ((folder, task), title) in zip(axes, TASKS.items()):
        lines = (FOLDER / folder / "runs.jsonl").read_text().splitlines()
        runs = [run for run in map(json.loads, lines) if run["task"] == task]
        of_rows = dict(by(runs, "row"))
        for name, (label, colour) in ROWS.items():
            curve = mean_curve(of_rows[name])
            panel.plot(*curve, color=colour, label=label, lw=2)
        style.tidy(panel, title, "seconds of training on one core", "right answers")
        panel.set_ylim(0, 1.03)
    style.legend(figure, axes[0], columns=3)
    return figure


def mean_curve(runs):
    """Returns seconds and mean accuracies; a run that has ended keeps its last value.

    There is nothing before the first measurement of every seed.
    """
    curves = [np.array([point[1:4] for point in run["curve"]]) for run in runs]
    start = max(curve[0, 0] for curve in curves)
    end = statistics.mean(curve[-1, 0] for curve in curves)
    seconds = np.linspace(start, end, 50)
    return seconds, np.mean(
        [np.interp(seconds, curve[:, 0], curve[:, 2]) for curve in curves], 0
    )
