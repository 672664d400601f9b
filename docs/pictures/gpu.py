"""Time of a GPU training step by length, for Performer and exact attention."""

import json
import statistics

from benchmarks import runner
from docs.pictures import style

LINES = {
    "Performer": (style.OURS, "o", "Performer"),
    "exact": (style.EXACT, "s", "Keras' exact layer"),
    "exact, fused": (style.FURTHER[0], "D", "fused exact (JAX)"),
}
# Cases with the same number of tokens.
SIZES = (64, 1024), (16, 4096), (4, 16_384), (1, 65_536)
FORMS = {True: "causal", False: "both sides"}
# Other rows have other precisions, and blocks of other sizes.
DEFAULT = {"policy": "mixed_bfloat16", "precision": "default", "blocks": "GPU"}


def is_default(x):
    return DEFAULT.items() <= x.items() and (x["batch"], x["length"]) in SIZES


def draw():
    text = (runner.RESULTS / "gpu/xla.json").read_text()
    programs = [x for x in json.loads(text)["programs"] if is_default(x)]
    figure, both = style.panels(2, height=3.6, sharey=True)
    for axes, causal in zip(both, (False, True)):
        for row, (colour, marker, label) in LINES.items():
            points = {
                x["length"]: 1e3 * statistics.median(x["seconds"])
                for x in programs
                if x["row"] == row and x["form"] == FORMS[causal] and "seconds" in x
            }
            width = 3 if row == "Performer" else 1.6
            options = {"color": colour, "marker": marker, "label": label}
            axes.plot(*zip(*points.items()), ms=5, linewidth=width, **options)
        title = "causal" if causal else "bidirectional"
        style.tidy(axes, title, "tokens of a sequence")
        style.lengths(axes, [length for _, length in SIZES], ["1k", "4k", "16k", "65k"])
        axes.set_yscale("log")
    both[0].set_ylabel("milliseconds", color=style.INK, fontsize=10)
    both[0].set_yticks([2, 5, 10, 20, 50, 100], [2, 5, 10, 20, 50, 100])
    style.legend(figure, both[0], 3)
    style.headline(figure, "Equal tokens, equal time: longer sequences cost no more")
    return figure
