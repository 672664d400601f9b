"""What a layer keeps of earlier tokens while it decodes, in numbers."""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

POSITIONS = 2 ** np.arange(4, 21)
HEADS, HEAD_DIM = 8, 64


def main():
    figure, (axes,) = style.panels(height=3.0)
    cache = 2 * HEADS * HEAD_DIM * POSITIONS  # keys and values of every token
    axes.plot(
        POSITIONS,
        cache,
        color=style.EXACT,
        label="exact attention: cached keys, values",
    )
    for num_features, dashes in ((256, "-"), (64, ":")):
        layer = keras_performer.PerformerAttention(
            HEADS, HEAD_DIM, causal=True, num_random_features=num_features
        )
        state = keras.tree.flatten(layer.get_initial_state(batch_size=1))
        numbers = sum(int(np.prod(tensor.shape)) for tensor in state)
        axes.plot(
            POSITIONS,
            np.full(len(POSITIONS), numbers),
            dashes,
            color=style.OURS,
            label=f"the state, {num_features} features: {numbers:,}",
        )
    style.tidy(
        axes,
        f"One layer, {HEADS} heads of {HEAD_DIM}",
        "tokens so far",
        "numbers that are kept",
    )
    ticks = POSITIONS[::4]
    style.lengths(axes, ticks)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=10)
    style.save(figure, __file__)


if __name__ == "__main__":
    main()
