"""Style of all pictures."""

import io

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

INK, MUTED, GRID = "#1a1a1a", "#5f5f5f", "#e4e4e4"
# One colour means one thing on every page.
OURS, EXACT, CONTROL = "#0b5cab", "#c2410c", "#7a7a7a"
FURTHER = ("#2e8b57", "#8e44ad", "#b7791f")
MATRIX, HIDDEN = "Blues", "#e2e2e2"
# Inches. Pages show a picture at most this wide, phones half as wide: small figures
# keep their letters readable there.
WIDTH = 5.6


def panels(columns=1, height=3.2, rows=1, **options):
    """Returns a figure and its axes, `columns` in each row."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white", layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    return figure, axes


def tidy(axes, title=None, xlabel=None, ylabel=None):
    """Gives a plot a light grid and no box."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=10)
    _label(axes, title, xlabel, ylabel)


def lengths(axes, values, labels=None):
    """Makes a logarithmic axis of lengths with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, labels or [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())


def matrix(axes, values, title=None, xlabel="key", ylabel=None, **options):
    """Draws an attention matrix: a row for each query; weights of 0 are grey."""
    colours = colormaps[MATRIX].with_extremes(bad=HIDDEN)
    values = np.ma.masked_equal(values, 0)
    axes.imshow(values, cmap=colours, interpolation="nearest", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(MUTED)
    _label(axes, title, xlabel, ylabel)


def headline(figure, text):
    """Writes the message of a picture above all panels."""
    figure.suptitle(text, color=INK, fontsize=11, fontweight="bold")


def legend(figure, axes, columns=2):
    """Explains the lines of `axes` below all panels."""
    given = axes.get_legend_handles_labels()
    below = {"loc": "outside lower center", "ncols": columns}
    figure.legend(*given, frameon=False, **below)


def save(figure, path):
    """Writes a PNG; the same figure gives the same file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=200)
    # 128 colours are enough for lines, letters and blues, and a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def _label(axes, title, xlabel, ylabel):
    if title:
        axes.set_title(title, color=INK, fontsize=11)
    if xlabel:
        axes.set_xlabel(xlabel, color=INK, fontsize=10)
    if ylabel:
        axes.set_ylabel(ylabel, color=INK, fontsize=10)
