"""Memory of a training step as a share of a chip, for this and exact attention."""

import numpy as np

from docs.pictures import style, tables


def draw():
    table = tables.rows("benchmarks/tpu/README.md", "configuration")
    chips = {}  # configurations for one chip need the same share
    for row in table:
        used, available = tables.numbers(row[4])
        exact = tables.numbers(row[6])[0]
        chips.setdefault(row[0].split("-")[0], (used / available, exact / available))
    figure, (axes,) = style.panels(height=3.0)
    heights = np.arange(len(chips))
    bars = zip(
        np.transpose(list(chips.values())),
        ((-0.2, style.OURS, "this model"), (0.2, style.EXACT, "with exact attention")),
    )
    for shares, (shift, colour, label) in bars:
        axes.barh(heights + shift, shares, 0.36, color=colour, label=label)
    axes.axvline(1, color=style.INK, linestyle="--", linewidth=1)
    axes.text(1.1, -0.62, "one chip", fontsize=10, va="center")
    title = "The model fits, with exact attention it does not"
    style.tidy(axes, title, "memory needed, divided by a chip's memory")
    axes.grid(False, axis="y")
    axes.set_yticks(heights, chips)
    axes.set_ylim(len(chips) - 0.5, -0.9)
    style.legend(figure, axes)
    return figure
