"""The layers that are compared, controls first."""

import functools

import keras_performer
from keras_performer import layers

WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
PERFORMER = "Performer, window"
# What the core has; the first two are the controls of every task.
CORE = (
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
# Four for each number in a head: 64.
FEATURES_OF_NUMBER = 4
# Of a block that others see it through, of Linformer's mixtures and of mixers' units:
# as a part of the length.
PARTS = 16


def attention(row, length, window, num_heads, key_dim):
    """What `PerformerLM(attention=)` is given for a row.

    Each sees about as many keys as the window has, where it chooses some.

    Args:
        row: a name of `ROWS`, or `TWO_FEATURES`.
        length: int L, the longest sequence.
        window: int W; tokens see W - 1 to each side.
        num_heads, key_dim: ints.
    """
    if row == WITHOUT:
        return "none"
    heads = num_heads, key_dim
    few = max(length // PARTS, 4)
    performer = functools.partial(
        keras_performer.PerformerAttention,
        num_random_features=FEATURES_OF_NUMBER * key_dim,
    )
    window = {"exact_window": window} if row == PERFORMER else {"sliding_window": window}
    of_places = {"max_length": length}
    makers = {
        EXACT: lambda: layers.ExactAttention(*heads),
        WINDOW: lambda: layers.LocalAttention(*heads, **window),
        PERFORMER: lambda: performer(*heads, **window),
        "Performer": lambda: performer(*heads),
        "Performer, relu": lambda: performer(*heads, feature_map="relu"),
        TWO_FEATURES: lambda: performer(*heads, num_random_features=2),
        "Linear Transformer": lambda: layers.LinearTransformerAttention(*heads),
        "Longformer": lambda: layers.LongformerAttention(
            *heads, **window, num_global_tokens=1
        ),
        "Big Bird": lambda: layers.BigBirdAttention(*heads, block_size=few // 2),
        "Linformer": lambda: layers.LinformerAttention(
            *heads, **of_places, projection_dim=few
        ),
        "Reformer": lambda: layers.ReformerAttention(
            *heads, num_hashes=4, num_buckets=PARTS, **window
        ),
        "Sinkhorn": lambda: layers.SinkhornAttention(
            *heads, **of_places, block_size=few
        ),
        "Synthesizer": lambda: layers.SynthesizerAttention(
            *heads, **of_places, kind="factorized_random", rank=8
        ),
        "FNet": lambda: layers.FourierMixing("ortho"),
        "gMLP": lambda: layers.SpatialGatingUnit(length, num_heads * key_dim),
        "MLP-Mixer": lambda: layers.TokenMixing(length, few),
    }
    return makers[row]()
