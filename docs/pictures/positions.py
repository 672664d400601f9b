"""Weights between equal tokens with rotary positions, on a line and in a grid."""

import keras

from docs.pictures import style
from keras_performer.layers import ExactAttention

LENGTH = 16


def draw():
    keras.utils.set_random_seed(1)
    x = 2 * keras.ops.ones((1, LENGTH, 16))
    cases = [
        ("rotary=True: near tokens\nin the sequence", True),
        ("rotary=(4, 4): near tokens\nin a 4 x 4 grid", (4, 4)),
    ]
    figure, axes = style.panels(len(cases), height=3.3)
    weights = None
    for panel, (title, rotary) in zip(axes, cases):
        layer = ExactAttention(1, 16, use_bias=False, rotary=rotary)
        layer.build(x.shape)
        # keys equal queries: without positions all weights would be equal
        weights = weights or layer.query_dense.get_weights()
        for dense in (layer.query_dense, layer.key_dense):
            dense.set_weights(weights)
        _, scores = layer(x, return_attention_scores=True)
        style.matrix(panel, scores[0, 0].numpy(), title)
    axes[0].set_ylabel("query", fontsize=10)
    return figure
