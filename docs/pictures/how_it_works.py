"""The order of two products: (Q K^T) V, and Q (K^T V)."""

from matplotlib.patches import Rectangle

from docs.pictures import style

# The length of a sequence, and the size of a head or of features.
LONG, SHORT = 3.0, 0.95


def draw():
    figure, (exact, linear) = style.panels(height=4.1, rows=2)
    tokens, transposed = (SHORT, LONG), (LONG, SHORT)
    product(exact, ["(", ("Q", tokens), ("K$^T$", transposed), ")", ("V", tokens)])
    result(exact, (LONG, LONG), "L x L", style.EXACT)
    title(exact, "Exact attention makes an L x L matrix", style.EXACT)
    keys_and_values = ["(", ("$\\phi$(K)$^T$", transposed), ("V", tokens), ")"]
    product(linear, [("$\\phi$(Q)", tokens), *keys_and_values])
    result(linear, (SHORT, SHORT), "M x V", style.OURS)
    title(linear, "Linear attention makes a matrix of fixed size", style.OURS)
    return figure


def product(axes, factors):
    """Draws factors from left to right: matrices with names, and brackets."""
    x = 0.0
    for factor in factors:
        if isinstance(factor, str):
            axes.text(x + 0.15, 0, factor, ha="center", va="center", fontsize=26)
            x += 0.45
        else:
            name, (width, height) = factor
            box(axes, x, width, height, style.HIDDEN)
            axes.text(x + width / 2, 0, name, ha="center", va="center", fontsize=11)
            x += width + 0.25
    arrow = {"arrowstyle": "-|>", "color": style.MUTED, "lw": 1.5}
    axes.annotate("", (8.5, 0), (7.2, 0), arrowprops=arrow)
    axes.set_xlim(-0.2, 12.0)
    axes.set_ylim(-1.65, 1.65)
    axes.set_aspect("equal")
    axes.axis("off")


def result(axes, size, name, colour):
    """Draws the matrix that the first product makes."""
    width, height = size
    box(axes, 8.8, width, height, colour)
    inside = width > 1
    x = 8.8 + (width / 2 if inside else width + 0.25)
    options = {"ha": "center", "color": "white"} if inside else {"color": colour}
    axes.text(x, 0, name, va="center", fontsize=13, **options)


def box(axes, x, width, height, colour):
    axes.add_patch(
        Rectangle((x, -height / 2), width, height, fc=colour, ec=style.MUTED, lw=0.8)
    )


def title(axes, text, colour):
    axes.set_title(text, color=colour, fontsize=12, loc="left")
