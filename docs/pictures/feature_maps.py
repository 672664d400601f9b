"""Error of the output against the number of features, and of averaging all values."""

import numpy as np
from matplotlib.ticker import NullLocator

from benchmarks import accuracy
from docs.pictures import style

LENGTH, DRAWS = 1024, 5
FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048)
CASES = [(16, 0.5), (64, 0.5), (64, 1.0)]  # head size, standard deviation
LINES = [  # with an error for each number of features
    ("softmax", '"softmax"', style.OURS),
    ("favor+", '"favor+"', style.FURTHER[0]),
]
WORST = 20


def draw():
    figure, axes = style.panels(len(CASES), height=3.6, sharey=True)
    for panel, case in zip(axes, CASES):
        for name, label, colour in LINES:
            errors = [error(name, case, count) for count in FEATURES]
            panel.plot(FEATURES, errors, "o-", ms=3.5, color=colour, label=label)
        taylor = error("taylor", case, None)
        panel.axhline(taylor, color=style.FURTHER[1], label='"taylor"')
        average = error(accuracy.AVERAGE, case, None)
        panel.axhline(average, color=style.CONTROL, ls="--", label="average of values")
        panel.axhspan(average, WORST, color=style.HIDDEN, alpha=0.6, lw=0)
        head_dim, std = case
        style.tidy(panel, f"head size {head_dim}\nstd {std}", "features")
        style.lengths(panel, FEATURES[::3])
        panel.set_yscale("log")
        panel.set_yticks([0.01, 0.1, 1, 10], ["0.01", "0.1", 1, 10])
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(0.007, WORST)
    axes[0].set_ylabel("relative error of the output", fontsize=10)
    axes[0].text(
        16, 10, "worse than\nthe average", color=style.MUTED, va="center", fontsize=9
    )
    style.legend(figure, axes[0])
    style.headline(figure, "Large heads and large queries need many features")
    return figure


def error(name, case, count):
    """Mean relative error of an estimator over samples of inputs and features."""
    seeds = range(DRAWS)
    return np.mean([accuracy.error(name, count, seed, LENGTH, *case) for seed in seeds])
