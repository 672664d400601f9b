"""Memory that a layer keeps of earlier tokens while it generates."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

POSITIONS = 2 ** np.arange(4, 21)
HEADS, HEAD_DIM = 8, 64
MEGABYTES = 4 / 1e6  # of a float32


def main():
    figure, (axes,) = style.panels(height=3.0)
    cache = 2 * HEADS * HEAD_DIM * POSITIONS  # keys and values of every token
    axes.plot(
        POSITIONS,
        MEGABYTES * cache,
        color=style.EXACT,
        label="exact attention: cache of keys and values",
    )
    for num_features, dashes in ((256, "-"), (64, ":")):
        layer = keras_performer.PerformerAttention(
            HEADS, HEAD_DIM, causal=True, num_random_features=num_features
        )
        state = keras.tree.flatten(layer.get_initial_state(batch_size=1))
        numbers = sum(int(np.prod(tensor.shape)) for tensor in state)
        axes.plot(
            POSITIONS,
            np.full(len(POSITIONS), MEGABYTES * numbers),
            dashes,
            color=style.OURS,
            label=f"this layer: state, {num_features} features",
        )
    style.tidy(
        axes,
        "A cache grows with the text, the state does not",
        "tokens so far",
        "MB of one layer",
    )
    ticks = POSITIONS[::4]
    style.lengths(axes, ticks)
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    axes.legend(frameon=False, fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
