"""Time of a training step on a GPU against the length, beside exact attention."""

import json
import statistics

from benchmarks.gpu import cases, report
from docs.pictures import style

LINES = {
    "Performer": (style.OURS, "o", "this layer"),
    "exact": (style.EXACT, "s", "Keras' exact layer"),
    cases.FUSED: (style.FURTHER[0], "D", "exact, fused by cuDNN (JAX)"),
}
# Cases of equally many tokens.
SIZES = cases.ALL[:4]


def main():
    results = json.loads((report.RESULTS / "layer.json").read_text())
    figure, both = style.panels(2, height=3.3, sharey=True)
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
            axes.plot(
                list(points),
                list(points.values()),
                color=colour,
                marker=marker,
                markersize=5,
                linewidth=3 if row == "Performer" else 1.6,
                label=label,
            )
        title = "causal" if causal else "bidirectional"
        style.tidy(axes, title, "tokens of a sequence")
        style.lengths(axes, [length for _, length in SIZES], ["1k", "4k", "16k", "65k"])
        axes.set_yscale("log")
    both[0].set_ylabel("milliseconds", color=style.INK, fontsize=10)
    both[0].set_yticks([2, 5, 10, 20, 50, 100], [2, 5, 10, 20, 50, 100])
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
