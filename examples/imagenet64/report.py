"""Report at the end of the example: a table, a picture and the loss curve."""

import io
import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, MUTED = "#1a1a1a", "#6b6b6b"
TRAIN_COLOUR, HELD_OUT_COLOUR = "#9ec5e8", "#0b5cab"
LABELS = {
    "without attention": "the same model without attention",
    "uniform": "uniform over 256 values",
    "histogram": "histogram of the training pixels, per channel",
    "png": "PNG, lossless",
}


def baselines(training_pixels, held_out):
    """Returns bits per dimension of held-out images without a model, by name."""
    return {
        "uniform": math.log2(256),
        "histogram": histogram_bits(training_pixels, held_out),
        "png": png_bits(held_out),
    }


def histogram_bits(training_pixels, held_out):
    """Returns bits per dimension of a histogram per channel, with add-one smoothing."""
    bits = []
    for channel in range(3):
        values = training_pixels[..., channel].ravel()
        counts = 1 + np.bincount(values, minlength=256)
        bits_of_value = -np.log2(counts / counts.sum())
        bits.append(bits_of_value[held_out[..., channel]].mean())
    return float(np.mean(bits))


def png_bits(images):
    """Returns bits per dimension of one optimized PNG file per image, with headers."""
    return 8 * sum(_png_bytes(image) for image in images) / images.size


def most_detailed(images, count):
    """Returns the `count` images with the largest PNG files, so not plain skies."""
    sizes = [_png_bytes(image) for image in images]
    return images[np.argsort(sizes)[::-1][:count]]


def _png_bytes(image):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="png", optimize=True)
    return len(file.getvalue())


def table(results, name):
    """Formats a dict of labels to bits as aligned text; `name` names the data."""
    rows = [
        (LABELS.get(label, label), f"{bits:.3f}") for label, bits in results.items()
    ]
    header = "model", "bits/dim"
    first, last = (max(map(len, column)) for column in zip(header, *rows, strict=True))
    lines = [f"{label:<{first}}  {bits:>{last}}" for label, bits in [header, *rows]]
    lines.insert(1, f"{'-' * first}  {'-' * last}")
    return "\n".join([f"Held-out bits per dimension: {name}", "", *lines])


def save_pictures(path, held_out, completions, samples):
    """Writes a grid of images; each argument is a row, uint8 `[n, 64, 64, 3]`."""
    rows = {
        "held out": held_out,
        "completed from\nthe upper half": completions,
        "drawn from\nnothing": samples,
    }
    rows = {label: images for label, images in rows.items() if len(images)}
    columns = max(map(len, rows.values()))
    figure = Figure(
        figsize=(1.7 * columns + 1.4, 1.7 * len(rows)), layout="constrained"
    )
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (label, images) in zip(grid, rows.items()):
        place = {"ha": "right", "va": "center", "transform": line[0].transAxes}
        line[0].text(-0.1, 0.5, label, color=INK, **place)
        for axes, image in zip(line, images):
            axes.imshow(image, interpolation="nearest")
            if images is completions:  # small ticks mark where the model took over
                mark = {"transform": axes.transAxes, "clip_on": False, "linewidth": 2.5}
                for ends in ([-0.022, -0.006], [1.006, 1.022]):
                    axes.plot(ends, [0.5, 0.5], color=HELD_OUT_COLOUR, **mark)
    figure.savefig(path, dpi=160)


def save_curve(path, train_curve, held_out_curve, baselines):
    """Writes curves, lists of `(step, bits)`, and baselines as horizontal lines."""
    figure = Figure(figsize=(7, 4.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*train_curve), color=TRAIN_COLOUR, label="training")
    last = f"held out, {held_out_curve[-1][1]:.2f}"
    axes.plot(*zip(*held_out_curve), "o-", color=HELD_OUT_COLOUR, label=last)
    for label, value in baselines.items():
        axes.axhline(value, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        where = {"transform": axes.get_yaxis_transform(), "va": "center"}
        label = label.upper() if label == "png" else label
        axes.text(1.01, value, f"{label} {value:.2f}", color=MUTED, size=8, **where)
    every = [bits for _, bits in [*held_out_curve, *train_curve]]
    lowest = min([*every, *baselines.values()])
    # An untrained model may be at 20 bits: cut off the curve at the top.
    axes.set_ylim(lowest - 0.4, max([8.6, *baselines.values()]))
    axes.set(xlabel="optimizer step", ylabel="bits per dimension")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper center", ncols=2)
    figure.savefig(path, dpi=160)
