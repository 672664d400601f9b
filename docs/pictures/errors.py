"""Draws the sizes of a layer's inputs, and lines between equal sizes."""

from docs.pictures import style

# Inputs, with their axes, and their column and row in the picture.
GIVEN = {
    "query": (("B", "T", "dim"), 0, 0),
    "query_mask": (("B", "T"), 0, 1),
    "positions": (("B", "T"), 0, 2),
    "segment_ids": (("B", "T"), 0, 3),
    "value": (("B", "S", "dim"), 1, 0),
    "key": (("B", "S", "dim"), 1, 1),
    "key_mask, value_mask": (("B", "S"), 1, 2),
    "attention_mask": (("B", "1", "S"), 1, 3),
}
COLOURS = {"B": style.MUTED, "T": style.OURS, "S": style.EXACT}
STEP = 0.42  # from one axis to the next


def row_of(axes, name, letters, column, row):
    left, bottom = 3.6 * column, -row
    axes.text(left + 1.75, bottom, name, ha="right", va="center", fontsize=10)
    for index, letter in enumerate(letters):
        x = left + 2.05 + STEP * index
        colour = COLOURS.get(letter, style.CONTROL)
        filled = letter in COLOURS
        box = {"boxstyle": "round,pad=0.3", "edgecolor": colour}
        box["facecolor"] = colour if filled else "white"
        centre = {"ha": "center", "va": "center", "fontsize": 9}
        ink = "white" if filled else style.INK
        axes.text(x, bottom, letter, color=ink, bbox=box, **centre)


def draw():
    figure, (axes,) = style.panels(height=2.9)
    for column, letter in enumerate("TS"):
        for line, of in (("B", 0), (letter, 1)):
            x = 3.6 * column + 2.05 + STEP * of
            bottom = -2.4 if letter == "S" and of else -3
            axes.plot([x, x], [0, bottom], color=COLOURS[line], zorder=0, linewidth=1.5)
    x = 3.6 + 2.05 + STEP
    axes.plot([x, x + STEP], [-2.4, -3], color=COLOURS["S"], zorder=0, linewidth=1.5)
    for name, given in GIVEN.items():
        row_of(axes, name, *given)
    note = "causal, rotary, exact_window, forget_gate, segment_ids: T = S"
    axes.text(3.7, -4, note, ha="center", va="center", fontsize=10, color=style.INK)
    axes.set(xlim=(-0.1, 7.1), ylim=(-4.4, 0.5))
    axes.set_axis_off()
    style.headline(figure, "Sizes that are joined must be equal")
    return figure
