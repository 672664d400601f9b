"""The layers that are compared, controls first."""

import keras_performer
from keras_performer import layers

WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
PERFORMER = "Performer, window"
# No model: what counting tokens tells, from `baselines`.
COUNTS = "token counts"
# What the core has; the first four are the controls of every task.
CORE = (
    COUNTS,
    WITHOUT,
    EXACT,
    WINDOW,
    PERFORMER,
    "Big Bird",
    "Linear Transformer",
)
ROWS = (
    *CORE,
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
)
# What the published benchmark ran ListOps with: two random features.
TWO_FEATURES = "Performer, 2 features"
# What cannot hide later tokens.
NOT_CAUSAL = "Linformer", "FNet", "MLP-Mixer"
# Four for each number in a head: 64.
FEATURES_OF_NUMBER = 4
# Of a block that others see it through, of Linformer's mixtures and of mixers' units:
# as a part of the length.
PARTS = 16


def attention(row, length, window, num_heads, key_dim, causal=False):
    """What `PerformerLM(attention=)` is given for a row.

    Each sees about as many keys as the window has, where it chooses some.

    Args:
        row: a name of `ROWS`, or `TWO_FEATURES`.
        length: int L, the longest sequence.
        window: int W; tokens see W - 1 to each side.
        num_heads, key_dim: ints.
        causal: bool, hide later tokens.
    """
    if row == WITHOUT:
        return "none"
    sides = {"causal": causal}
    few = max(length // PARTS, 4)
    features = {"num_random_features": FEATURES_OF_NUMBER * key_dim}
    window = (
        {"exact_window": window} if row == PERFORMER else {"sliding_window": window}
    )
    of_places = {"max_length": length}
    kinds = {
        EXACT: (layers.ExactAttention, {}),
        WINDOW: (layers.LocalAttention, window),
        PERFORMER: (keras_performer.PerformerAttention, {**features, **window}),
        "Performer": (keras_performer.PerformerAttention, features),
        "Performer, relu": (
            keras_performer.PerformerAttention,
            {**features, "feature_map": "relu"},
        ),
        TWO_FEATURES: (keras_performer.PerformerAttention, {"num_random_features": 2}),
        "Linear Transformer": (layers.LinearTransformerAttention, {}),
        "Longformer": (layers.LongformerAttention, {**window, "num_global_tokens": 1}),
        "Big Bird": (layers.BigBirdAttention, {"block_size": few // 2}),
        "Linformer": (layers.LinformerAttention, {**of_places, "projection_dim": few}),
        "Reformer": (
            layers.ReformerAttention,
            {**window, "num_hashes": 4, "num_buckets": PARTS},
        ),
        "Sinkhorn": (layers.SinkhornAttention, {**of_places, "block_size": few}),
        "Synthesizer": (
            layers.SynthesizerAttention,
            {**of_places, "kind": "factorized_random", "rank": 8},
        ),
    }
    mixers = {
        "FNet": lambda: layers.FourierMixing("ortho", **sides),
        "gMLP": lambda: layers.SpatialGatingUnit(length, num_heads * key_dim, **sides),
        "MLP-Mixer": lambda: layers.TokenMixing(length, few, **sides),
    }
    if row in mixers:
        return mixers[row]()
    kind, options = kinds[row]
    return kind(num_heads, key_dim, **options, **sides)
