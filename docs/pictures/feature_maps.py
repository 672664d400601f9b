"""Error of the output against the number of features, beside the mean of all values."""

import numpy as np
from matplotlib.ticker import NullLocator

from benchmarks import accuracy
from docs.pictures import style

LENGTH, DRAWS = 1024, 5
FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048)
CASES = [(16, 0.5), (64, 0.5), (64, 1.0)]  # head size, standard deviation
LINES = [
    ("mean of all values", style.CONTROL, "--"),
    ('"softmax"', style.OURS, "-"),
    ('"favor+"', style.FURTHER[0], "-"),
]


def main():
    figure, axes = style.panels(len(CASES), height=2.9, sharey=True)
    for panel, (head_dim, std) in zip(axes, CASES):
        means = [
            np.mean(
                [accuracy.errors(d, LENGTH, head_dim, std, m) for d in range(DRAWS)], 0
            )
            for m in FEATURES
        ]
        for (name, colour, dashes), errors in zip(LINES, np.transpose(means)):
            marker = "" if dashes == "--" else "o"
            panel.plot(
                FEATURES,
                errors,
                dashes,
                color=colour,
                marker=marker,
                ms=3.5,
                label=name,
            )
        style.tidy(panel, f"head size {head_dim}\nstd {std}", "features")
        style.lengths(panel, FEATURES[::3])
        panel.set_yscale("log")
        panel.set_yticks([0.03, 0.1, 0.3, 1, 3, 10], ["0.03", "0.1", "0.3", 1, 3, 10])
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(0.02, 20)
    axes[0].set_ylabel("relative error of the output", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
