"""Pictures: errors against features, and learning curves."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.accuracy import estimates, estimators, training
from benchmarks.learning import rows

# Colour, dashes, and what the legend says.
LINES = {
    estimators.TRIGONOMETRIC_IID: ("#d1701c", ":", "trigonometric, iid rows"),
    estimators.TRIGONOMETRIC: ("#d1701c", "-", "trigonometric, orthogonal"),
    estimators.POSITIVE_IID: ("#2a8c5a", ":", "positive, iid rows"),
    estimators.POSITIVE: ("#2a8c5a", "-", 'positive, orthogonal: "favor+"'),
    estimators.DEFAULT: ("#0b5cab", "-", 'this package\'s "softmax"'),
    estimates.BEST_RANK: ("#222222", "--", "best matrix of rank m"),
}
MEAN_STYLE = ("#8a8a8a", "--", "mean of values")
# Of training: the same feature map has the same colour, drawn anew or not.
CURVES = {
    rows.WITHOUT: "#8a8a8a",
    rows.EXACT: "#222222",
    "softmax": "#0b5cab",
    "favor+": "#2a8c5a",
}
# Of the first picture: more than that is as wrong.
LOWEST, HIGHEST = 1e-3, 1e3


def draw_estimates(results, path):
    """A panel for each scale of queries and keys that was swept.

    Lines are means over draws; areas go from the least to the most.
    """
    # one number of features is no line
    counted = {}
    for row in results:
        if row["estimator"] == estimators.DEFAULT:
            counted.setdefault((row["head_dim"], row["std"]), set()).add(
                row["features"]
            )
    settings = [setting for setting, found in counted.items() if len(found) > 1]
    figure = Figure(figsize=(4 * len(settings), 4.8), layout="constrained")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for (head_dim, std), axes in zip(settings, panels):
        same = [r for r in results if (r["head_dim"], r["std"]) == (head_dim, std)]
        for name, (colour, dashes, label) in LINES.items():
            of_name = [row for row in same if row["estimator"] == name]
            draw_line(axes, of_name, color=colour, ls=dashes, label=label)
        colour, dashes, label = MEAN_STYLE
        for row in same:
            if row["estimator"] == estimators.MEAN:
                error = row["relative_error"]
                axes.axhline(error, color=colour, ls=dashes, label=label)
        ticks = sorted(counted[head_dim, std])
        axes.set(title=f"H = {head_dim}, std {std}", xlabel="features m")
        axes.set(xscale="log", yscale="log", ylim=(LOWEST, HIGHEST))
        axes.set_xticks(ticks, [f"{m:,}" for m in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("relative error of the output")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)


def draw_line(axes, same, color, **style):
    features = [row["features"] for row in same]
    axes.plot(features, [row["relative_error"] for row in same], color=color, **style)
    least, most = np.transpose([row["relative_error_range"] for row in same])
    axes.fill_between(features, least, most, color=color, alpha=0.12, lw=0)


def draw_training(runs, path):
    """Accuracy against steps: redrawn or not, and the generalized kernels."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    compared = {
        "Features drawn anew, or not": (*training.CONTROLS, *training.REDRAW_ROWS),
        "Generalized kernels": (*training.CONTROLS, *training.KERNELS),
    }
    for axes, (title, names) in zip(panels, compared.items()):
        others = iter(np.linspace(0.05, 0.95, len(training.KERNELS)))
        for name in names:
            same = [run for run in runs if run["row"] == name]
            if not same:
                continue
            steps, values = of_seeds(same)
            colour = CURVES.get(name.partition(",")[0])
            colour = colour or colormaps["turbo"](next(others))
            dashes = "--" if name.endswith(rows.REDRAW) else "-"
            axes.plot(steps, values.mean(0), color=colour, ls=dashes, label=name)
            area = values.min(0), values.max(0)
            axes.fill_between(steps, *area, color=colour, alpha=0.1, lw=0)
        axes.set(title=title, xlabel="steps", ylim=(-0.03, 1.03))
        axes.grid(alpha=0.3)
        if axes.get_lines():
            axes.legend(fontsize=8, frameon=False, loc="upper left")
    panels[0].set_ylabel("recalled, held-out")
    figure.savefig(path, dpi=110)


def of_seeds(runs):
    """Steps, and an array `(seeds, points)`; who ended early keeps the last value."""
    curves = [np.array(run["curve"]) for run in runs]
    steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    values = [np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves]
    return steps, np.array(values)
