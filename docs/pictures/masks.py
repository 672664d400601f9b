"""Draws the keys that each query sees, according to the scores of a layer."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

LENGTH = 16


def draw():
    keras.utils.set_random_seed(0)
    places = np.arange(LENGTH)[None]
    cases = [
        ("padding", {"query_mask": places < 11}),
        ("causal", {"use_causal_mask": True}),
        ("key_mask", {"key_mask": places % 5 > 0}),
        ("segments", {"segment_ids": places // 6, "use_causal_mask": True}),
    ]
    x = keras.random.normal((1, LENGTH, 32), seed=0)
    layer = keras_performer.PerformerAttention(1, 16, seed=0)
    figure, axes = style.panels(len(cases), height=2.3)
    for panel, (title, masks) in zip(axes, cases):
        _, scores = layer(x, return_attention_scores=True, **masks)
        seen = np.where(scores[0, 0] > 0, 0.6, 0.0)  # a middle blue
        style.matrix(panel, seen, title, vmin=0, vmax=1)
        panel.set_xticks(np.arange(LENGTH) - 0.5, minor=True)
        panel.set_yticks(np.arange(LENGTH) - 0.5, minor=True)
        panel.grid(which="minor", color="white", lw=0.6)
        panel.tick_params(which="minor", length=0)
    axes[0].set_ylabel("query", fontsize=10)
    style.headline(figure, "Each mask hides different keys (grey)")
    return figure
