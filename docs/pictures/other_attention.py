"""Scores of published attentions on the same queries and keys."""

import keras
import numpy as np

from docs.pictures import style
from keras_performer import PerformerAttention, layers, zoo

LENGTH, SIZE, WINDOW = 64, 32, 8


def attentions():
    """Layers by their titles."""
    options = dict(num_heads=1, key_dim=SIZE, seed=1)
    near = dict(**options, sliding_window=WINDOW)
    lengths = dict(**options, max_length=LENGTH)
    blocks = dict(block_size=4, num_global_blocks=1, num_random_blocks=1)
    return {
        "exact": layers.ExactAttention(**options),
        "Performer": PerformerAttention(**options, exact_window=WINDOW),
        "Longformer": zoo.LongformerAttention(**near, num_global_tokens=3),
        "Big Bird": zoo.BigBirdAttention(**options, **blocks),
        "Reformer": zoo.ReformerAttention(**near, num_hashes=2, num_buckets=8),
        "Sinkhorn": zoo.SinkhornAttention(**lengths, block_size=8),
        "Linformer": zoo.LinformerAttention(**lengths, projection_dim=16),
        "Synthesizer": zoo.SynthesizerAttention(**lengths),
    }


def draw():
    keras.utils.set_random_seed(0)
    # neighbours are alike, as in most sequences
    x = np.random.default_rng(0).normal(size=(LENGTH + 4, SIZE))
    x = np.stack([x[i : i + 4].mean(0) for i in range(LENGTH)])[np.newaxis] * 3
    cases = attentions()
    figure, axes = style.panels(4, rows=2, height=3.9)
    for panel, (title, layer) in zip(axes, cases.items()):
        layer.build(x.shape)
        for name in sorted({"query", "key"} & set(layer.projections)):
            if title != "Synthesizer":  # its `query` is another layer
                source = getattr(cases["exact"], f"{name}_dense").get_weights()
                getattr(layer, f"{name}_dense").set_weights(source)
        _, scores = layer(x.astype("float32"), return_attention_scores=True)
        scores = np.maximum(scores[0, 0], 0) ** 0.5  # to show small scores
        style.matrix(panel, scores, title, vmin=0, vmax=0.6)
    for panel in axes[::4]:
        panel.set_ylabel("query", fontsize=10)
    style.headline(figure, "Each mechanism sees different keys")
    return figure
