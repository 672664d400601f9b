"""The layers that are compared, controls first."""

import keras_performer
from keras_performer import layers, zoo

WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
PERFORMER = "Performer, window"
# The same, but near keys count more at first in every other head, far ones between.
GAINS, FIRST_GAINS = "Performer, window, gains", (-4.0, 2.0)
# One first gain that makes far keys count more.
HIGH_GAIN, FIRST_GAIN = "Performer, window, gain 2", 2.0
# Features that are not drawn: their number follows from the head's size.
TAYLOR = "Performer, window, taylor"
# What the published benchmark ran ListOps with: two random features.
TWO_FEATURES = "Performer, 2 features"
# No models: what counting tokens tells, and the first token alone, from `baselines`.
COUNTS, FIRST = NO_MODELS = "token counts", "first token"
# What the core has; the first five are the controls of every task.
CORE = (
    *NO_MODELS,
    WITHOUT,
    EXACT,
    WINDOW,
    PERFORMER,
    GAINS,
    "Big Bird",
    "Linear Transformer",
)
# Those of which every seed is warmed up, too.
SEVERAL = *CORE, HIGH_GAIN, TAYLOR
ROWS = (
    *SEVERAL,
    "Performer",
    "Performer, relu",
    "Longformer",
    "Linformer",
    "Reformer",
    "Sinkhorn",
    "Synthesizer",
    "FNet",
    "gMLP",
    "MLP-Mixer",
    TWO_FEATURES,
)
MODELS = tuple(row for row in ROWS if row not in NO_MODELS)
# What grows with the square of the length.
QUADRATIC = EXACT, "Sinkhorn", "Synthesizer", "gMLP"
# What cannot hide later tokens, or tells classes only.
NOT_CAUSAL = FIRST, "Linformer", "FNet", "MLP-Mixer"
# Four for each number in a head: 64.
FEATURES_OF_NUMBER = 4
# Of Reformer.
NUM_BUCKETS = 16


def attention(row, length, window, num_heads, key_dim, causal=False, rotates=False):
    """What `PerformerLM(attention=)` is given for a row.

    Blocks, Linformer's mixtures and units of MLP-Mixer are of the window, too.

    Args:
        row: a name of `ROWS`, or `TWO_FEATURES`.
        length: int L, the longest sequence.
        window: int W; tokens see W - 1 to each side.
        num_heads, key_dim: ints.
        causal: bool, hide later tokens.
        rotates: bool, whether queries and keys are rotated, where there are any.
    """
    if row == WITHOUT:
        return "none"
    sides = {"causal": causal}
    features = {"num_random_features": FEATURES_OF_NUMBER * key_dim}
    near = {"sliding_window": window}
    near_and_far = {**features, "exact_window": window}
    of_places = {"max_length": length}
    kinds = {
        EXACT: (layers.ExactAttention, {}),
        WINDOW: (layers.LocalAttention, near),
        PERFORMER: (keras_performer.PerformerAttention, near_and_far),
        GAINS: (
            keras_performer.PerformerAttention,
            {**near_and_far, "initial_log_gain": alternating(num_heads)},
        ),
        HIGH_GAIN: (
            keras_performer.PerformerAttention,
            {**near_and_far, "initial_log_gain": FIRST_GAIN},
        ),
        TAYLOR: (
            keras_performer.PerformerAttention,
            {"exact_window": window, "feature_map": "taylor"},
        ),
        "Performer": (keras_performer.PerformerAttention, features),
        "Performer, relu": (
            keras_performer.PerformerAttention,
            {**features, "feature_map": "relu"},
        ),
        TWO_FEATURES: (keras_performer.PerformerAttention, {"num_random_features": 2}),
        "Linear Transformer": (layers.LinearTransformerAttention, {}),
        "Longformer": (zoo.LongformerAttention, {**near, "num_global_tokens": 1}),
        "Big Bird": (zoo.BigBirdAttention, {"block_size": window // 2}),
        "Linformer": (
            zoo.LinformerAttention,
            {**of_places, "projection_dim": window},
        ),
        "Reformer": (
            zoo.ReformerAttention,
            {**near, "num_hashes": 4, "num_buckets": NUM_BUCKETS},
        ),
        "Sinkhorn": (zoo.SinkhornAttention, {**of_places, "block_size": window}),
        "Synthesizer": (
            zoo.SynthesizerAttention,
            {**of_places, "kind": "factorized_random", "rank": 8},
        ),
    }
    mixers = {
        "FNet": lambda: zoo.FourierMixing("ortho", **sides),
        "gMLP": lambda: zoo.SpatialGatingUnit(length, num_heads * key_dim, **sides),
        "MLP-Mixer": lambda: zoo.TokenMixing(length, window, **sides),
    }
    if row in mixers:
        return mixers[row]()
    kind, options = kinds[row]
    rotary = {"rotary": True} if rotates and row != "Synthesizer" else {}
    return kind(num_heads, key_dim, **options, **sides, **rotary)


def alternating(num_heads):
    """The first gains of so many heads."""
    return [FIRST_GAINS[head % 2] for head in range(num_heads)]
