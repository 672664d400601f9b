"""The places of the constructor's arguments in each Keras, and here."""

from docs import signatures
from docs.pictures import style
from keras_performer import PerformerAttention

NAME = "MultiHeadAttention.__init__"
COLOURS = {
    "sliding_window": style.FURTHER[1],
    "flash_attention": style.EXACT,
    "use_gate": style.FURTHER[2],
}


def rows():
    """Names in their order, by what has them."""
    record = signatures.recorded()
    found = {f"Keras {version}": of[NAME] for version, of in record.items()}
    rows = {title: [name for name, _ in pairs] for title, pairs in found.items()}
    return {**rows, "here": signatures.with_places(PerformerAttention)}


def main():
    figure, (axes,) = style.panels(height=2.9)
    found = rows()
    for row, (title, names) in enumerate(found.items()):
        axes.text(0.2, -row, title, ha="right", va="center", fontsize=10)
        for place, name in enumerate(names, start=1):
            colour = COLOURS.get(name, style.GRID)
            axes.barh(-row, 0.9, left=place - 0.45, height=0.7, color=colour)
            white = name in COLOURS
            axes.text(
                place,
                -row,
                place,
                ha="center",
                va="center",
                fontsize=8,
                color="white" if white else style.INK,
            )
    for index, (name, colour) in enumerate(COLOURS.items()):
        axes.text(
            0.6 + 6.2 * index, -len(found), name, color=colour, fontsize=10, va="center"
        )
    axes.set(xlim=(-2.6, 19), ylim=(-len(found) - 0.5, 0.6))
    axes.set_axis_off()
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
