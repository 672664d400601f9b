"""Time of a training step against the length, from the table of the benchmarks."""

from docs.pictures import style, tables

FORMS = ("bidirectional", "causal")  # left and right of the "/" in a cell
LINES = [  # column of the table, label, colour, marker
    (1, "PerformerAttention", style.OURS, "o"),
    (2, "Keras MultiHeadAttention", style.EXACT, "s"),
    (3, "PyTorch, exact", style.FURTHER[2], "D"),
    (4, "KernelAttention", style.FURTHER[0], "^"),
    (5, "performer-pytorch", style.FURTHER[1], "v"),
]


def draw():
    table = tables.rows("benchmarks/README.md", "tokens")
    lengths = [int(tables.numbers(row[0])[0]) for row in table]
    figure, axes = style.panels(2, height=4.0, sharey=True)
    for index, (panel, form) in enumerate(zip(axes, FORMS)):
        for column, label, colour, marker in LINES:
            cells = [(row[column].split("/") * 2)[index] for row in table]
            points = [
                (length, tables.numbers(cell)[0])
                for length, cell in zip(lengths, cells)
                if not cell.strip().startswith(("needs", "not"))
            ]
            width = 2.8 if column == 1 else 1.4
            options = {"color": colour, "marker": marker, "label": label}
            panel.plot(*zip(*points), ms=4.5, linewidth=width, **options)
        style.tidy(panel, form, "tokens")
        ticks = [n for n in lengths if n.bit_length() % 2]  # powers of 4
        labels = [f"{n // 1024}k" if n >= 1024 else f"{n}" for n in ticks]
        style.lengths(panel, ticks, labels)
        panel.set_yscale("log")
    axes[0].set_yticks([10, 100, 1000, 10000], ["10 ms", "0.1 s", "1 s", "10 s"])
    style.legend(figure, axes[0])
    style.headline(
        figure,
        "Without window and gate, PerformerAttention\nis fastest from 2,048 tokens on",
    )
    return figure
