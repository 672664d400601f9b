"""Memory of a chip that each configuration takes, beside exact attention."""

import numpy as np

from docs.pictures import style, tables


def main():
    table = tables.rows("benchmarks/tpu/README.md", "configuration")
    names = [row[0] for row in table]
    used, available = np.transpose([tables.numbers(row[4]) for row in table])
    exact = [tables.numbers(row[6])[0] for row in table]
    figure, (axes,) = style.panels(height=3.4)
    heights = np.arange(len(names))
    axes.barh(heights - 0.2, used, 0.36, color=style.OURS, label="this model")
    axes.barh(
        heights + 0.2,
        exact,
        0.36,
        color=style.EXACT,
        label="the same with exact attention",
    )
    axes.scatter(
        available, heights, 260, style.INK, marker="|", label="a chip has", zorder=3
    )
    style.tidy(axes, None, "GiB per chip")
    axes.grid(False, axis="y")
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128, 256, 512], [8, 16, 32, 64, 128, 256, 512])
    axes.set_xlim(4, 1100)
    axes.set_yticks(heights, names)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
