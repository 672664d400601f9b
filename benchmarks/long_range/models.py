"""Models: the same encoder with different attentions, and a layer for answers."""

import keras
import tensorflow as tf

import keras_performer
from benchmarks.learning.models import PairsOfTokens, count_parameters
from keras_performer import layers, zoo

WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
PERFORMER = "Performer, window"
# With initial log-gains that alternate between heads, for near keys and for far keys.
GAINS, FIRST_GAINS = "Performer, window, gains", (-4.0, 2.0)
# With an initial log-gain that makes far keys count more.
HIGH_GAIN, FIRST_GAIN = "Performer, window, gain 2", 2.0
# With features that are not random; the head size determines their number.
TAYLOR = "Performer, window, taylor"
# The published benchmark ran ListOps with two random features.
TWO_FEATURES = "Performer, 2 features"
# Baselines without a model, from `training`: token counts, and the first token.
COUNTS, FIRST = NO_MODELS = "token counts", "first token"
# Rows of the core; the first five are the controls of every task.
CORE = (
    *(*NO_MODELS, WITHOUT, EXACT, WINDOW),
    *(PERFORMER, GAINS, "Big Bird", "Linear Transformer"),
)
# Rows that have pretraining with every seed.
SEVERAL = *CORE, HIGH_GAIN, TAYLOR
ROWS = (
    *SEVERAL,
    *("Performer", "Performer, relu", "Longformer", "Linformer", "Reformer"),
    *("Sinkhorn", "Synthesizer", "FNet", "gMLP", "MLP-Mixer", TWO_FEATURES),
)
MODELS = tuple(row for row in ROWS if row not in NO_MODELS)
# Rows whose memory grows with the square of the length.
QUADRATIC = EXACT, "Sinkhorn", "Synthesizer", "gMLP"
# Rows that cannot hide later tokens, or only predict classes.
NOT_CAUSAL = FIRST, "Linformer", "FNet", "MLP-Mixer"
# Random features for each element of a head: 64 at head size 16.
FEATURES_OF_NUMBER = 4
# Buckets of Reformer.
NUM_BUCKETS = 16
PADDING = 0
# With exact attention, the feed-forward width is this multiple of the model's width.
WIDTHS = 4
# The least number of units in a feed-forward network.
NARROWEST = 8


def attention_of(row, length, window, num_heads, key_dim, causal=False, rotates=False):
    """Returns the argument `attention` of `PerformerLM` for a row of `ROWS`.

    Tokens see `window - 1` tokens on each side. The window also sets sizes of blocks,
    Linformer's projections and units of MLP-Mixer. `rotates` rotates queries and keys
    if the row has any.
    """
    if row == WITHOUT:
        return "none"
    sides = {"causal": causal}
    features = {"num_random_features": FEATURES_OF_NUMBER * key_dim}
    near = {"sliding_window": window}
    near_and_far = {**features, "exact_window": window}
    of_places = {"max_length": length}
    # alternates from head to head
    gains = [FIRST_GAINS[head % 2] for head in range(num_heads)]
    performers = {
        PERFORMER: near_and_far,
        GAINS: {**near_and_far, "initial_log_gain": gains},
        HIGH_GAIN: {**near_and_far, "initial_log_gain": FIRST_GAIN},
        TAYLOR: {"exact_window": window, "feature_map": "taylor"},
        "Performer": features,
        "Performer, relu": {**features, "feature_map": "relu"},
        TWO_FEATURES: {"num_random_features": 2},
    }
    random = {"kind": "factorized_random", "rank": 8}
    hashes = {"num_hashes": 4, "num_buckets": NUM_BUCKETS}
    kinds = {
        **{
            name: (keras_performer.PerformerAttention, of)
            for name, of in performers.items()
        },
        EXACT: (layers.ExactAttention, {}),
        WINDOW: (layers.LocalAttention, near),
        "Linear Transformer": (layers.LinearTransformerAttention, {}),
        "Longformer": (zoo.LongformerAttention, {**near, "num_global_tokens": 1}),
        "Big Bird": (zoo.BigBirdAttention, {"block_size": window // 2}),
        "Linformer": (zoo.LinformerAttention, {**of_places, "projection_dim": window}),
        "Reformer": (zoo.ReformerAttention, {**near, **hashes}),
        "Sinkhorn": (zoo.SinkhornAttention, {**of_places, "block_size": window}),
        "Synthesizer": (zoo.SynthesizerAttention, {**of_places, **random}),
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


class Reader(keras.Model):
    """Computes logits `(B, L, vocabulary_size)` of tokens, or `(B, 1, num_classes)`.

    Classes are read from the mean over a sequence. Means over thousands of tokens
    hardly differ between sequences. Batch normalization enlarges the differences;
    without it models learn very slowly.
    """

    def __init__(self, encoder, task, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.padded, self.classifies = encoder, task.padded, num_classes
        width = encoder.hidden_dim
        if num_classes:
            # averages over few batches, as a run has only hundreds
            self.norm = keras.layers.BatchNormalization(momentum=0.9)
            self.norm.build((None, width))
        self.logits = keras.layers.Dense(num_classes or task.vocabulary_size)
        self.logits.build((None, width))
        self.built = True

    def call(self, inputs, training=None):
        mask = inputs != PADDING if self.padded else None
        x = self.encoder(inputs, mask=mask, training=training)
        if not self.classifies:
            return self.logits(x)
        if mask is None:
            x = tf.reduce_mean(x, 1)
        else:
            weights = tf.cast(mask, x.dtype)[..., tf.newaxis]
            x = tf.reduce_sum(x * weights, 1) / tf.reduce_sum(weights, 1)
        return self.logits(self.norm(x, training=training))[:, tf.newaxis]


def make_encoder(task, row, seed):
    """Makes an encoder with the attention of a row.

    The feed-forward width is chosen such that each encoder has nearly as many
    parameters as the encoder with exact attention.
    """
    wanted = parameters_with(task, EXACT, WIDTHS * task.hidden_dim)
    narrow = parameters_with(task, row, NARROWEST)
    # a unit has a weight from and to each channel of its block, and a bias
    of_unit = task.num_layers * (2 * task.hidden_dim + 1)
    width = NARROWEST + round((wanted - narrow) / of_unit)
    return encoder_of_width(task, row, max(width, NARROWEST), seed)


def parameters_with(task, row, width):
    return count_parameters(encoder_of_width(task, row, width, seed=0))


def encoder_of_width(task, row, width, seed):
    """Makes an encoder whose feed-forward networks have `width` units."""
    keras.utils.set_random_seed(seed)
    num_heads = task.hidden_dim // task.key_dim
    causal = not task.num_classes
    rotates = task.position_embedding == "rotary"
    attention = attention_of(
        row, task.length, task.window, num_heads, task.key_dim, causal, rotates
    )
    ids = task.vocabulary_size + 1  # the last one stands for a hidden token
    embedding = PairsOfTokens(ids, task.hidden_dim) if task.joins_tokens else None
    return keras_performer.PerformerLM(
        ids,
        max_length=task.length,
        num_layers=task.num_layers,
        num_heads=num_heads,
        hidden_dim=task.hidden_dim,
        intermediate_dim=width,
        causal=causal,
        attention=attention,
        embedding=embedding,
        head=keras.layers.Identity(),
        position_shape=task.grid,
        # rows without queries and keys to rotate have weights for positions
        position_embedding=None if rotates else "learned",
        seed=seed,
    )
