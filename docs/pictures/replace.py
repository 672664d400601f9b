"""Accuracy of one model with different attentions, while it learns a recall task.

Sequences hold 16 pairs of a key and a value, then the keys again in another order; the
model must answer each key with its value. A model trains for seconds, on 3 seeds each.
"""

import keras
import numpy as np

import keras_performer
from docs.pictures import style

PAIRS, SYMBOLS, WIDTH, HEADS = 16, 64, 64, 4
STEPS, EVERY, BATCH, SEEDS = 200, 20, 32, 3
FEATURES = 64


def performer(feature_map):
    options = {"feature_map": feature_map, "num_random_features": FEATURES}
    return lambda x: keras_performer.PerformerAttention(
        HEADS, WIDTH // HEADS, causal=True, seed=0, **options
    )(x)


def exact(x):
    attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
    return attention(x, x, use_causal_mask=True)


VARIANTS = [
    ("MultiHeadAttention", exact, style.EXACT),
    ("PerformerAttention", performer("softmax"), style.OURS),
    ('PerformerAttention, feature_map="relu"', performer("relu"), style.FURTHER[0]),
    ("no attention", lambda x: keras.ops.zeros_like(x), style.CONTROL),
]


def draw():
    figure, (axes,) = style.panels(height=3.7)
    steps = EVERY * np.arange(1, STEPS // EVERY + 1)
    for label, attention, colour in VARIANTS:
        curves = [curve(attention, seed) for seed in range(SEEDS)]
        print(label, [f"{accuracies[-1]:.3f}" for accuracies in curves], flush=True)
        axes.plot(steps, np.mean(curves, 0), color=colour, label=label)
        axes.fill_between(
            steps, np.min(curves, 0), np.max(curves, 0), color=colour, alpha=0.15, lw=0
        )
    style.tidy(axes, None, "training steps", "pairs recalled")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    style.legend(figure, axes)
    style.headline(figure, "The default features learn almost like exact attention")
    return figure


def curve(attention, seed):
    """Accuracy on new sequences after every `EVERY` steps."""
    keras.utils.set_random_seed(seed)
    network = model(attention)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(3e-3), loss, weighted_metrics=["accuracy"])
    random = np.random.default_rng(seed)
    test = sequences(np.random.default_rng(1000), 256)
    accuracies = []
    for _ in range(STEPS // EVERY):
        x, y, weights = sequences(random, EVERY * BATCH)
        network.fit(x, y, BATCH, sample_weight=weights, verbose=0)
        inputs, targets, weights = test
        right = network.predict(inputs, batch_size=256, verbose=0).argmax(-1) == targets
        accuracies.append(right[weights > 0].mean())
    return accuracies


def model(attention):
    """Model of two blocks of attention and feed-forward network, in plain Keras."""
    tokens = keras.Input((4 * PAIRS,), dtype="int32")
    before = keras.ops.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    x = keras.layers.Embedding(2 * SYMBOLS, WIDTH)(tokens)
    x += keras.layers.Embedding(2 * SYMBOLS, WIDTH)(before)
    for _ in range(2):
        x += attention(keras.layers.LayerNormalization()(x))
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * WIDTH, "gelu")(y)
        x += keras.layers.Dense(WIDTH)(y)
    logits = keras.layers.Dense(2 * SYMBOLS)(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, logits)


def sequences(random, count):
    """Samples `(tokens, next tokens, weights)`; weights are 1 for answers, else 0."""
    keys = random.permuted(np.tile(np.arange(SYMBOLS), (count, 1)), axis=1)[:, :PAIRS]
    values = SYMBOLS + random.integers(0, SYMBOLS, keys.shape)
    order = random.permuted(np.tile(np.arange(PAIRS), (count, 1)), axis=1)
    pairs = np.stack([keys, values], -1)
    asked = np.take_along_axis(pairs, order[..., None], axis=1)
    tokens = np.concatenate([pairs, asked], 1).reshape(count, -1)
    weights = np.zeros(tokens.shape)
    weights[:, 2 * PAIRS :: 2] = 1
    return tokens, np.roll(tokens, -1, axis=1), weights
