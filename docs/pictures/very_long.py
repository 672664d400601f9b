"""Memory of a training step against the length, as the TPU compiler counts it."""

from docs.pictures import style, tables

CHIP = 15.75  # GiB of a v5e chip that a program can use
LINES = [  # column of the table, label, its position, colour
    (1, "exact", (2**14.2, 40), style.EXACT),
    (2, "plain", (2**16.2, 7.5), style.CONTROL),
    (3, 'recompute="block"', (2**19.6, 6.2), style.FURTHER[0]),
    (4, 'recompute="network"', (2**20.2, 1.5), style.OURS),
]


def draw():
    table = tables.rows("benchmarks/tpu/README.md", "tokens")
    figure, (axes,) = style.panels(height=3.6)
    lengths = [2 ** int(tables.numbers(row[0].split("^")[1])[0]) for row in table]
    for column, label, place, colour in LINES:
        points = [
            (length, tables.numbers(row[column])[0])
            for length, row in zip(lengths, table)
            if row[column]
        ]
        axes.plot(*zip(*points), color=colour, marker="o", ms=4)
        axes.text(*place, label, color=colour, fontsize=10)
    axes.axhline(CHIP, color=style.INK, linestyle="--", linewidth=1)
    axes.text(2**25, CHIP * 1.12, "one v5e chip", ha="right", fontsize=10)
    title = "How many tokens one chip can train on"
    style.tidy(axes, title, "tokens in a sequence", "GiB")
    style.lengths(axes, [2**13, 2**16, 2**20, 2**25])
    axes.set_xticklabels(["8,192", "65,536", "1 million", "34 million"])
    axes.set_yscale("log")
    axes.set_yticks([1, 4, 16, 64], [1, 4, 16, 64])
    return figure
