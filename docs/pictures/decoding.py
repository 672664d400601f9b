"""Memory that a layer keeps for earlier tokens during generation."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

POSITIONS = 2 ** np.arange(4, 21)
HEADS, HEAD_DIM = 8, 64
MEGABYTES = 4 / 1e6  # of a float32


def draw():
    figure, (axes,) = style.panels(height=3.0)
    cache = 2 * HEADS * HEAD_DIM * POSITIONS  # keys and values of every token
    label = "exact attention: cache of keys and values"
    axes.plot(POSITIONS, MEGABYTES * cache, color=style.EXACT, label=label)
    for num_features, dashes in ((256, "-"), (64, ":")):
        layer = keras_performer.PerformerAttention(
            HEADS, HEAD_DIM, causal=True, num_random_features=num_features
        )
        state = keras.tree.flatten(layer.get_initial_state(batch_size=1))
        numbers = sum(int(np.prod(tensor.shape)) for tensor in state)
        size = np.full(len(POSITIONS), MEGABYTES * numbers)
        label = f"this layer: state, {num_features} features"
        axes.plot(POSITIONS, size, dashes, color=style.OURS, label=label)
    title = "A cache grows with the text, the state does not"
    style.tidy(axes, title, "tokens so far", "MB of one layer")
    style.lengths(axes, POSITIONS[::4])
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    axes.legend(frameon=False, fontsize=10)
    return figure
