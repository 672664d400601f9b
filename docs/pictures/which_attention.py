"""Accuracy and bits that small models reach with each attention, from `long_range`."""

import json
import pathlib

from benchmarks.learning import models
from benchmarks.learning.report import best, mean_result
from benchmarks.tables import by
from docs.pictures import style

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks/results/long_range"
# Rows of the picture, by their names in the results.
ROWS = {
    models.WITHOUT: ("no attention", style.CONTROL),
    models.WINDOW: ("local attention", style.INK),
    "window + softmax, high gain, 64 features": ("PerformerAttention", style.OURS),
    models.EXACT: ("exact attention", style.EXACT),
}
TASKS = {  # titles, names and limits of the axis: better is to the right
    "recall 512": ("Look up a far token: local attention fails", "accuracy", (0, 1.18)),
    "bytes 512": (
        "Predict code: local attention is enough",
        "bits per byte, less is better",
        (2.9, 2.27),
    ),
}


def draw():
    lines = (FOLDER / "runs.jsonl").read_text().splitlines()
    of_tasks = dict(by(map(json.loads, lines), "task"))
    figure, axes = style.panels(rows=len(TASKS), height=4.8)
    for panel, (name, (title, measure, limits)) in zip(axes, TASKS.items()):
        trained = dict(by(of_tasks[name], "row"))
        for height, (row, (_, colour)) in enumerate(reversed(ROWS.items())):
            value = mean_result(best(trained[row]))
            panel.plot(value, height, "o", color=colour, ms=9)
            beside = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
            text, point = f"{value:.2f}", (value, height)
            panel.annotate(text, point, **beside, fontsize=11, color=colour)
        style.tidy(panel, title, measure)
        panel.set_xlim(limits)
        panel.set_ylim(-0.6, len(ROWS) - 0.4)
        labels = [label for label, _ in reversed(ROWS.values())]
        panel.set_yticks(range(len(ROWS)), labels, fontsize=11)
    return figure
