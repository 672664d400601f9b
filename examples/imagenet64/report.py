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
    """Bits per dimension that need no model, on the held-out images.

    Args:
        training_pixels: uint8 array `[..., 3]`.
        held_out: uint8 array `[n, 64, 64, 3]`.

    Returns:
        dict with `"uniform"`, `"histogram"` and `"png"`.
    """
    return {
        "uniform": math.log2(256),
        "histogram": histogram_bits(training_pixels, held_out),
        "png": png_bits(held_out),
    }


def histogram_bits(training_pixels, held_out):
    """Bits per dimension of one histogram per channel, with add-one smoothing."""
    bits = []
    for channel in range(3):
        values = training_pixels[..., channel].ravel()
        counts = 1 + np.bincount(values, minlength=256)
        bits_of_value = -np.log2(counts / counts.sum())
        bits.append(bits_of_value[held_out[..., channel]].mean())
    return float(np.mean(bits))


def png_bits(images):
    """Bits per dimension of one optimized PNG file per image, headers included."""
    return 8 * sum(_png_bytes(image) for image in images) / images.size


def most_detailed(images, count):
    """The `count` images whose PNG files are largest, to be shown: not the skies."""
    sizes = [_png_bytes(image) for image in images]
    return images[np.argsort(sizes)[::-1][:count]]


def _png_bytes(image):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="png", optimize=True)
    return len(file.getvalue())


def table(results, name):
    """Results as aligned text.

    Args:
        results: dict from label to bits per dimension, the models first, then what
            `baselines` returned.
        name: version of the data, `ImageData.name`.

    Returns:
        str of several lines.
    """
    rows = [
        (LABELS.get(label, label), f"{bits:.3f}") for label, bits in results.items()
    ]
    header = "model", "bits/dim"
    first, last = (max(map(len, column)) for column in zip(header, *rows, strict=True))
    lines = [f"{label:<{first}}  {bits:>{last}}" for label, bits in [header, *rows]]
    lines.insert(1, f"{'-' * first}  {'-' * last}")
    return "\n".join([f"Held-out bits per dimension: {name}", "", *lines])


def save_pictures(path, held_out, completions, samples):
    """Writes a grid with three rows of pictures.

    Args:
        path: of the PNG file.
        held_out: uint8 `[n, 64, 64, 3]`, images the model has not seen.
        completions: uint8 `[n, 64, 64, 3]`, the lower half drawn by the model.
        samples: uint8 `[n, 64, 64, 3]`, drawn from nothing.
    """
    rows = [
        ("held out", held_out),
        ("completed from\nthe upper half", completions),
        ("drawn from\nnothing", samples),
    ]
    rows = [(label, images) for label, images in rows if len(images)]
    columns = max(len(images) for _, images in rows)
    side, gap, margin = 1.6, 0.08, 1.35  # inches
    width = margin + columns * (side + gap)
    height = len(rows) * (side + gap) + gap
    figure = Figure(figsize=(width, height), facecolor="white")
    for row, (label, images) in enumerate(rows):
        bottom = height - (row + 1) * (side + gap)
        middle = (bottom + side / 2) / height
        figure.text(
            (margin - 0.15) / width, middle, label, ha="right", va="center", color=INK
        )
        for column, image in enumerate(images):
            left = margin + column * (side + gap)
            place = left / width, bottom / height, side / width, side / height
            axes = figure.add_axes(place)
            axes.imshow(np.asarray(image), interpolation="nearest")
            axes.set_axis_off()
            if images is completions:
                # Small ticks outside the picture mark where the model took over.
                axes.plot([-0.022, -0.006], [0.5, 0.5], **_tick(axes))
                axes.plot([1.006, 1.022], [0.5, 0.5], **_tick(axes))
    figure.savefig(path, dpi=160)


def _tick(axes):
    return {
        "transform": axes.transAxes,
        "color": HELD_OUT_COLOUR,
        "linewidth": 2.5,
        "clip_on": False,
    }


def save_curve(path, train_curve, held_out_curve, baselines):
    """Writes the loss curve, with the baselines as horizontal lines.

    Args:
        path: of the PNG file.
        train_curve: list of `(step, bits per dimension)`.
        held_out_curve: the same, on the held-out images.
        baselines: dict from label to bits per dimension.
    """
    figure = Figure(figsize=(7, 4.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    if len(train_curve):
        axes.plot(*zip(*train_curve, strict=True), color=TRAIN_COLOUR, label="training")
    if len(held_out_curve):
        steps, bits = zip(*held_out_curve, strict=True)
        marker = {"marker": "o", "markersize": 4}
        axes.plot(steps, bits, color=HELD_OUT_COLOUR, label="held out", **marker)
        note = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8}
        point = steps[-1], bits[-1]
        axes.annotate(f"{bits[-1]:.2f}", point, color=HELD_OUT_COLOUR, bbox=box, **note)
    for label, value in baselines.items():
        axes.axhline(value, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        where = {"transform": axes.get_yaxis_transform(), "va": "center"}
        label = label.upper() if label == "png" else label
        axes.text(1.01, value, f"{label} {value:.2f}", color=MUTED, size=8, **where)
    every = [bits for _, bits in [*held_out_curve, *train_curve]]
    lowest = min([*every, *baselines.values()])
    # An untrained model may be at 20: let it leave the picture at the top.
    axes.set_ylim(lowest - 0.4, max([8.6, *baselines.values()]))
    axes.set_xlabel("optimizer step", color=INK)
    axes.set_ylabel("bits per dimension", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED)
    axes.legend(frameon=False, loc="upper center", ncols=2)
    figure.savefig(path, dpi=160)
