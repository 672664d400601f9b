"""Which keys each query sees, as the scores of a layer show it."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

LENGTH = 16


def main():
    random = np.random.default_rng(0)
    x = random.standard_normal((1, LENGTH, 32)).astype("float32")
    padding = np.arange(LENGTH)[None] < 11
    cases = [
        ("no mask", {}),
        ("padding", {"query_mask": padding}),
        ("causal", {"use_causal_mask": True}),
        ("keys hidden", {"key_mask": np.arange(LENGTH)[None] % 5 > 0}),
    ]
    figure, axes = style.panels(len(cases), height=2.0)
    layer = keras_performer.PerformerAttention(1, 16, seed=0)
    keras.utils.set_random_seed(0)
    for panel, (title, masks) in zip(axes, cases):
        _, scores = layer(x, return_attention_scores=True, **masks)
        scores = scores[0, 0].numpy()
        style.matrix(panel, scores, title, vmin=0, vmax=0.25)
    axes[0].set_ylabel("query", fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
