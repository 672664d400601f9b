"""The parts of the package, and which imports which, read from the source."""

import ast

from docs.pages import ROOT
from docs.pictures import style

PACKAGE = ROOT / "keras_performer"
# Where a part stands: column, row. What others build on is at the bottom.
PLACES = {
    "models": (1.0, 3),
    "callbacks": (2.4, 3),
    "recompute": (0.2, 1.9),
    "layers": (1.7, 1.9),
    "feature_maps": (2.7, 0.9),
    "ops": (1.0, 0),
    "preflight": (3.4, 3),
}
MEANINGS = {
    "models": "PerformerLM, generate",
    "callbacks": "RedrawFeatures",
    "recompute": "training in chunks",
    "layers": "PerformerAttention, ...",
    "feature_maps": "which kernel",
    "ops": "the mathematics",
    "preflight": "checks a machine",
}


def main():
    parts = [part for part in PLACES if (PACKAGE / part).is_dir()]
    figure, (axes,) = style.panels(height=3.6)
    for part in parts:
        x, y = PLACES[part]
        write(axes, x, y, f"{part}\n", fontsize=11, color=style.OURS)
        write(axes, x, y, f"\n{MEANINGS[part]}", fontsize=8.5, color=style.INK)
        for used in used_by(part):
            if used in parts:
                axes.annotate(
                    "",
                    xy=PLACES[used],
                    xytext=(x, y),
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": style.CONTROL,
                        "shrinkA": 18,
                        "shrinkB": 22,
                    },
                )
    axes.set_xlim(-0.7, 3.9)
    axes.set_ylim(-0.4, 3.4)
    axes.set_axis_off()
    style.save(figure, __file__)


def write(axes, x, y, text, **options):
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    options = {"ha": "center", "va": "center", "zorder": 3, **options}
    axes.text(x, y, text, bbox=box, **options)


def used_by(part):
    """The other parts that the files of one part import."""
    names = set()
    for path in (PACKAGE / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            else:
                continue
            names |= {
                name.split(".")[1]
                for name in imported
                if name.startswith("keras_performer.")
            }
    return sorted(names - {part})


if __name__ == "__main__":
    main()
