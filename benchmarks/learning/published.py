"""Other published attentions and mixers, beside the rows of `models`."""

from keras_performer import layers, zoo

ROWS = (
    *("Big Bird", "Linear Transformer", "Longformer", "Linformer", "Reformer"),
    *("Sinkhorn", "Synthesizer", "FNet", "gMLP", "MLP-Mixer"),
)
# Rows that cannot hide later tokens, so only predict classes.
NOT_CAUSAL = "Linformer", "FNet", "MLP-Mixer"
# Buckets of Reformer.
NUM_BUCKETS = 16


def attention_of(row, task, key_dim):
    """Makes the attention or mixer of a row.

    The window sets its own size on each side, sizes of blocks, Linformer's projections
    and units of MLP-Mixer.
    """
    length, window, sides = task.length, task.window, {"causal": not task.num_classes}
    mixers = {
        "FNet": lambda: zoo.FourierMixing("ortho", **sides),
        "gMLP": lambda: zoo.SpatialGatingUnit(length, task.hidden_dim, **sides),
        "MLP-Mixer": lambda: zoo.TokenMixing(length, window, **sides),
    }
    if row in mixers:
        return mixers[row]()
    near, of_places = {"sliding_window": window}, {"max_length": length}
    random = {**of_places, "kind": "factorized_random", "rank": 8}
    hashes = {**near, "num_hashes": 4, "num_buckets": NUM_BUCKETS}
    kind, options = {
        "Linear Transformer": (layers.LinearTransformerAttention, {}),
        "Longformer": (zoo.LongformerAttention, {**near, "num_global_tokens": 1}),
        "Big Bird": (zoo.BigBirdAttention, {"block_size": window // 2}),
        "Linformer": (zoo.LinformerAttention, {**of_places, "projection_dim": window}),
        "Reformer": (zoo.ReformerAttention, hashes),
        "Sinkhorn": (zoo.SinkhornAttention, {**of_places, "block_size": window}),
        "Synthesizer": (zoo.SynthesizerAttention, random),
    }[row]
    return kind(task.hidden_dim // key_dim, key_dim, **options, **sides)
