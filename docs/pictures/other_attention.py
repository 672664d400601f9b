"""Scores of the attentions of the field on the same queries and keys."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style
from keras_performer import layers, zoo

LENGTH, SIZE, WINDOW = 64, 32, 8


def attentions():
    """Titles and layers, the exact one first."""
    options = dict(num_heads=1, key_dim=SIZE, seed=1)
    near = dict(**options, sliding_window=WINDOW)
    lengths = dict(**options, max_length=LENGTH)
    return [
        ("exact", layers.ExactAttention(**options)),
        (
            "Performer",
            keras_performer.PerformerAttention(**options, exact_window=WINDOW),
        ),
        (
            "Longformer",
            zoo.LongformerAttention(**near, num_global_tokens=3),
        ),
        (
            "Big Bird",
            zoo.BigBirdAttention(
                **options, block_size=4, num_global_blocks=1, num_random_blocks=1
            ),
        ),
        (
            "Reformer",
            zoo.ReformerAttention(**near, num_hashes=2, num_buckets=8),
        ),
        ("Sinkhorn", zoo.SinkhornAttention(**lengths, block_size=8)),
        ("Linformer", zoo.LinformerAttention(**lengths, projection_dim=16)),
        ("Synthesizer", zoo.SynthesizerAttention(**lengths)),
    ]


def main():
    # neighbours are alike, as in most sequences
    x = np.random.default_rng(0).normal(size=(LENGTH + 4, SIZE))
    x = np.stack([x[i : i + 4].mean(0) for i in range(LENGTH)])[np.newaxis] * 3
    pairs = attentions()
    _, exact = pairs[0]
    figure, axes = style.panels(4, rows=2, height=3.6)
    for panel, (title, layer) in zip(axes, pairs):
        layer.build(x.shape)
        for name in sorted({"query", "key"} & set(layer.projections)):
            if title != "Synthesizer":  # which has other weights by that name
                source = getattr(exact, f"{name}_dense").get_weights()
                getattr(layer, f"{name}_dense").set_weights(source)
        _, scores = layer(x.astype("float32"), return_attention_scores=True)
        scores = np.maximum(scores[0, 0], 0) ** 0.5  # so that small ones show
        style.matrix(panel, scores, title, vmin=0, vmax=0.6)
    for panel in axes[::4]:
        panel.set_ylabel("query", fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main()
