"""Time of a GPU training step by length, for Performer and exact attention."""

import json
import statistics

from benchmarks.gpu import cases, report
from docs.pictures import style

LINES = {
    "Performer": (style.OURS, "o", "this layer"),
    "exact": (style.EXACT, "s", "Keras' exact layer"),
    cases.FUSED: (style.FURTHER[0], "D", "exact, fused by cuDNN (JAX)"),
}
# Cases with the same number of tokens.
SIZES = cases.ALL[:4]


def draw():
    results = json.loads((report.RESULTS / "layer.json").read_text())
    figure, both = style.panels(2, height=3.6, sharey=True)
    for axes, causal in zip(both, (False, True)):
        for row, (colour, marker, label) in LINES.items():
            measured = {
                length: report.found(results, row, causal, (batch, length))
                for batch, length in SIZES
            }
            points = {
                length: 1e3 * statistics.median(found["seconds"])
                for length, found in measured.items()
                if "seconds" in found
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
