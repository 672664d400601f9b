"""Pictures of time and memory against the length, as in figure 3 of the paper."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.plan import FORMS
from benchmarks.results import NAMES

INK, MUTED = "#1a1a1a", "#6b6b6b"
# Contender: colour, marker. Ours is thick; what no real layer can beat is dashed.
LINES = {
    "softmax": ("#0b5cab", "o"),
    "returns V": ("#8a8a8a", "."),
    "exact": ("#c2410c", "s"),
    "scaled_dot_product_attention": ("#e8a33d", "D"),
    "KernelAttention exp": ("#2e8b57", "^"),
    "performer-pytorch": ("#8e44ad", "v"),
}


def save(folder, results):
    """Writes `time.png` and `memory.png` into the folder."""
    figure = panels(
        results.lengths(),
        lambda **case: scaled(results.seconds(**case), 1e3),
        "milliseconds",
        "Forward and backward pass of one layer",
    )
    figure.savefig(folder / "time.png", dpi=160)
    if results.lengths(memory=True):
        figure = panels(
            results.lengths(memory=True),
            lambda **case: scaled(results.peak_bytes(**case), 2**-20),
            "MiB",
            "Peak extra memory of a training step of one layer",
        )
        figure.savefig(folder / "memory.png", dpi=160)


def scaled(x, factor):
    return None if x is None else factor * x


def measured(lengths, value, **case):
    """The points that were measured."""
    points = ((length, value(**case, length=length)) for length in lengths)
    return [(length, y) for length, y in points if y is not None]


def panels(lengths, value, unit, title):
    """One panel for each form, one line for each contender: XLA where it has it."""
    figure = Figure(figsize=(10, 5.4), facecolor="white", layout="constrained")
    for axes, form in zip(figure.subplots(1, 2, sharey=True), FORMS):
        for contender, (colour, marker) in LINES.items():
            case = {"contender": contender, "form": form}
            points = measured(lengths, value, **case, mode="xla")
            points = points or measured(lengths, value, **case, mode="graph")
            if points:
                ours = contender == "softmax"
                axes.plot(
                    *zip(*points),
                    color=colour,
                    marker=marker,
                    markersize=7 if ours else 5,
                    linewidth=3.5 if ours else 1.6,
                    linestyle="--" if contender == "returns V" else "-",
                    zorder=3 if ours else 2,
                    label=NAMES[contender],
                )
        axes.set_title(form, color=INK, fontsize=13)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("length L", color=INK, fontsize=12)
        axes.grid(True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(MUTED)
        axes.tick_params(colors=MUTED, labelsize=11)
    figure.axes[0].set_ylabel(unit, color=INK, fontsize=12)
    figure.suptitle(f"{title} (XLA; PyTorch eager)", color=INK, fontsize=14)
    handles = {}
    for axes in figure.axes:
        for line in axes.get_lines():
            handles.setdefault(line.get_label(), line)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=11,
    )
    return figure
