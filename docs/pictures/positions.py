"""What rotary positions do to the weights between tokens that are all alike."""

import keras

import keras_performer
from docs.pictures import style

LENGTH = 16


def main():
    keras.utils.set_random_seed(1)
    x = 2 * keras.ops.ones((1, LENGTH, 16))
    performer = keras_performer.PerformerAttention
    exact = keras_performer.layers.ExactAttention
    cases = [
        ("exact, a line", exact, dict(rotary=True)),
        ("256 features", performer, dict(rotary=True, seed=0)),
        ("exact, a 4 x 4 grid", exact, dict(rotary=(4, 4))),
    ]
    figure, axes = style.panels(len(cases), height=2.4)
    weights = None
    for panel, (title, kind, options) in zip(axes, cases):
        layer = kind(num_heads=1, key_dim=16, use_bias=False, **options)
        layer.build(x.shape)
        # keys like queries, so that without positions all weights would be equal
        weights = weights or layer.query_dense.get_weights()
        for dense in (layer.query_dense, layer.key_dense):
            dense.set_weights(weights)
        _, scores = layer(x, return_attention_scores=True)
        style.matrix(panel, scores[0, 0].numpy(), title)
    axes[0].set_ylabel("query", fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
