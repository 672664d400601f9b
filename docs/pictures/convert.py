"""Weights of a trained head, exact, estimated, and estimated after calibration."""

import pathlib

import keras
import numpy as np

from benchmarks.conversion import sources
from benchmarks.conversion.scores import padded
from docs.pictures import style
from keras_performer import calibrate, convert_to_performer

LAYER, HEAD, WINDOW = 6, 2, 9


def draw():
    source = sources.rxnmapper(pathlib.Path("runs/conversion"))
    tokens = padded(source.sequences)
    *others, shown = np.argsort((tokens != 0).sum(1))[::-1]
    trained = source.model()
    converted, _ = convert_to_performer(trained, exact_window=WINDOW, seed=0)
    fitted, _ = calibrate(converted, tokens[others], verbose=0)
    shown = tokens[[shown]]
    shown = shown[:, shown[0] != 0]
    name = f"output_norm_{LAYER - 1}"
    x = keras.Model(trained.input, trained.get_layer(name).output)(shown)
    cases = {"trained": trained, "converted": converted, "calibrated": fitted}
    figure, axes = style.panels(len(cases), height=2.5)
    for panel, (title, model) in zip(axes, cases.items()):
        layer = model.get_layer(f"attention_{LAYER}")
        _, scores = layer(x, x, return_attention_scores=True)
        weights = np.asarray(scores)[0, HEAD]
        if model is trained:
            exact = weights
        else:
            wrong = 0.5 * np.abs(weights - exact).sum(-1).mean()
            title += f"\n{wrong:.0%} on wrong keys"
            places = np.arange(len(weights))
            for shift in (-WINDOW, WINDOW):  # near keys are between these lines
                panel.plot(places + shift, places, color=style.EXACT, linewidth=1)
        style.matrix(panel, weights**0.5, title, vmin=0, vmax=0.7)
        panel.set(xlim=(-0.5, len(weights) - 0.5), ylim=(len(weights) - 0.5, -0.5))
    axes[0].set_ylabel("query", fontsize=10)
    return figure
