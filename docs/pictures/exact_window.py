"""Weights of exact attention, of features, and of features with an exact window."""

import keras
import numpy as np

from docs.pictures import style
from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention

LENGTH, WINDOW = 32, 6


def draw():
    x = np.random.default_rng(1).standard_normal((1, LENGTH, 32)).astype("float32")
    x = np.cumsum(x, axis=1) / np.arange(2, LENGTH + 2)[:, None] ** 0.5  # smooth inputs
    keras.utils.set_random_seed(0)
    exact = ExactAttention(1, 16, causal=True)
    exact.build(x.shape)
    for dense in exact.query_dense, exact.key_dense:
        dense.kernel.assign(2.0 * dense.kernel)  # some keys count more than others
    cases = [("exact\n", exact)]
    titles = "features miss\nlarge weights", f"exact_window={WINDOW}\nrepairs near keys"
    for title, window in zip(titles, (None, WINDOW)):
        layer = PerformerAttention(
            1, 16, causal=True, seed=0, num_random_features=32, exact_window=window
        )
        layer.build(x.shape)
        for name in "query_dense", "key_dense":
            getattr(layer, name).set_weights(getattr(exact, name).get_weights())
        cases.append((title, layer))
    figure, axes = style.panels(len(cases), height=2.55)
    for panel, (title, layer) in zip(axes, cases):
        _, scores = layer(x, return_attention_scores=True)
        style.matrix(panel, scores[0, 0].numpy() ** 0.5, title, vmin=0, vmax=1)
    # weights to the right of this line are exact
    places = np.arange(LENGTH)
    axes[-1].step(places - WINDOW + 0.5, places, where="mid", color=style.EXACT, lw=1)
    axes[-1].set_xlim(-0.5, LENGTH - 0.5)
    axes[0].set_ylabel("query", fontsize=10)
    return figure
