"""Parts that the examples share: command line, optimizer, tables and curves."""

import pathlib

import keras
from matplotlib.figure import Figure

EVALUATIONS = 10  # during one training
COLORS = {
    "no attention": "#8a8a8a",
    "local attention": "#2f9e44",
    "Performer": "#0b5cab",
    "exact attention": "#d1701c",
}


def command(main):
    """Runs `main`, with its arguments as command-line options."""
    import jsonargparse

    jsonargparse.CLI(main, as_positional=False)


def whole(steps):
    """Rounds steps to a multiple of `EVALUATIONS`."""
    return max(1, steps // EVALUATIONS) * EVALUATIONS


def compile_model(model, learning_rate, steps, warmup_steps=50, metrics=None):
    """Compiles a model of logits; the learning rate rises, then falls to zero."""
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=learning_rate, warmup_steps=min(warmup_steps, steps)
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        metrics=metrics,
    )


def fit(model, training, test, batch_size, measure="accuracy"):
    """Trains a model, and evaluates it ten times.

    Args:
        model: compiled `keras.Model`.
        training, test: inputs, targets, and, if not all targets count, their weights.
        batch_size: int.
        measure: name of the loss or metric to return.

    Returns:
        List of `(step, result)` of the held-out data.
    """
    x, y, *weights = training
    steps = len(y) // batch_size // EVALUATIONS
    history = model.fit(
        x,
        y,
        batch_size,
        sample_weight=weights[0] if weights else None,
        shuffle=False,  # so that all models see the same data in the same order
        epochs=EVALUATIONS,
        steps_per_epoch=steps,
        validation_data=test,
        verbose=2,
    )
    results = history.history[f"val_{measure}"]
    return [(steps * done, result) for done, result in enumerate(results, start=1)]


def last(curves):
    """Returns the last result of each curve."""
    return {label: points[-1][1] for label, points in curves.items()}


def show(title, results):
    """Prints results with their labels."""
    print(f"\n{title}")
    for label, result in results.items():
        print(f"{label:30}{result:.3f}")


def draw(curves, ylabel, limits=(0, 1.02), baselines=None):
    """Draws results against steps, baselines as horizontal lines.

    Args:
        curves: dict from labels to lists of `(step, result)`.
        ylabel: str.
        limits: limits of the vertical axis.
        baselines: dict from labels to results.

    Returns:
        Matplotlib's figure and its axes.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, points in curves.items():
        style = {"markersize": 3, "color": COLORS.get(label)}
        axes.plot(*zip(*points), "o-", label=f"{label}, {points[-1][1]:.2f}", **style)
    for label, result in (baselines or {}).items():
        axes.axhline(result, color="#b0b0b0", linewidth=0.8, linestyle="--")
        beside = {"transform": axes.get_yaxis_transform(), "va": "center", "size": 8}
        axes.text(1.01, result, f"{label}, {result:.2f}", color="#6b6b6b", **beside)
    axes.set(xlim=(0, None), ylim=limits, xlabel="optimizer step", ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure, axes


def save(figure, folder, name="curves.png"):
    """Writes a picture, and prints its path."""
    path = pathlib.Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")
