"""The parts of the package, and which imports which, read from the source."""

import ast

from docs.pages import ROOT
from docs.pictures import style

PACKAGE = ROOT / "keras_performer"
# Where a part stands, and what it is. What others build on is at the bottom.
PLACES = {
    "models": (0.4, 4, "PerformerLM, generate"),
    "recompute": (0.4, 3, "training in chunks"),
    "callbacks": (1.2, 3, "RedrawFeatures"),
    "testing": (-0.4, 3, "check_causal, ..."),
    "approximation": (2.0, 3, "approximation_report"),
    "layers": (0.5, 2, "PerformerAttention, ..."),
    "feature_maps": (0.5, 1, "which kernel"),
    "ops": (0.5, 0, "the mathematics"),
    "preflight": (2.0, 0, "checks a machine"),
}


def main():
    figure, (axes,) = style.panels(height=3.8)
    for part, (x, y, meaning) in PLACES.items():
        centred = {"x": x, "ha": "center"}
        axes.text(y=y, s=part, va="bottom", fontsize=11, color=style.OURS, **centred)
        axes.text(y=y, s=meaning, va="top", fontsize=9, color=style.INK, **centred)
        for used in used_directly(part):
            to_x, to_y, _ = PLACES[used]
            axes.annotate(
                "",
                xy=(to_x, to_y + 0.32),
                xytext=(x, y - 0.25),
                arrowprops={"arrowstyle": "-|>", "color": style.CONTROL},
            )
    axes.set_xlim(-0.9, 2.5)
    axes.set_ylim(-0.3, 4.3)
    axes.set_axis_off()
    style.save(figure, __file__)


def used_directly(part):
    """What a part imports, less what those parts import themselves."""
    used = used_by(part)
    return sorted(used - set().union(*map(used_by, used)))


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
    return names & set(PLACES) - {part}


if __name__ == "__main__":
    main()
