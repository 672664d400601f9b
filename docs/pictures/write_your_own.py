"""Scores of the attention and of the feature map that the page makes."""

import keras

import keras_performer
from docs import pages
from docs.pictures import style
from keras_performer import layers

LENGTH, SIZE = 24, 32


def main():
    made = {"__name__": "page"}
    page = pages.ROOT / "docs" / "write_your_own.md"
    for code in pages.blocks(page.read_text(), "python"):
        if "class " in code:
            exec(compile(code.split("\nlayer = ")[0], str(page), "exec"), made)
    exact = layers.ExactAttention(1, SIZE)
    clusters = keras_performer.PerformerAttention(
        1, SIZE, feature_map=made["ClusterFeatures"](), num_random_features=16, seed=0
    )
    cases = [
        ("ExactAttention", exact),
        ("FadingAttention", made["FadingAttention"](1, SIZE)),
        ("ClusterFeatures", clusters),
    ]
    x = 1.5 * keras.random.normal((1, LENGTH, SIZE), seed=0)
    figure, axes = style.panels(len(cases), height=2.6)
    for panel, (title, layer) in zip(axes, cases):
        layer.build(x.shape)
        for name in ("query_dense", "key_dense"):  # the same queries and keys for all
            source = getattr(exact, name).get_weights()
            getattr(layer, name).set_weights(source)
        _, scores = layer(x, return_attention_scores=True)
        style.matrix(panel, scores[0, 0].numpy(), title, vmin=0, vmax=0.4)
    axes[0].set_ylabel("query", fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main()
