"""The models: one encoder, its attention exchanged, and what reads it."""

import keras
import tensorflow as tf

import keras_performer
from benchmarks.learning.models import PairsOfTokens, count_parameters
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
    *(*NO_MODELS, WITHOUT, EXACT, WINDOW),
    *(PERFORMER, GAINS, "Big Bird", "Linear Transformer"),
)
# Those of which every seed is warmed up, too.
SEVERAL = *CORE, HIGH_GAIN, TAYLOR
ROWS = (
    *SEVERAL,
    *("Performer", "Performer, relu", "Longformer", "Linformer", "Reformer"),
    *("Sinkhorn", "Synthesizer", "FNet", "gMLP", "MLP-Mixer", TWO_FEATURES),
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
PADDING = 0
# The feed-forward network beside exact attention is so many times as wide as the model,
WIDTHS = 4
# and others at least so many.
NARROWEST = 8


def attention_of(row, length, window, num_heads, key_dim, causal=False, rotates=False):
    """Argument `attention` of `PerformerLM` for a row of `ROWS`.

    Tokens see `window - 1` to each side; blocks, Linformer's mixtures and units of
    MLP-Mixer are of the window, too. Queries and keys are rotated, where there are any,
    if it `rotates`.
    """
    if row == WITHOUT:
        return "none"
    sides = {"causal": causal}
    features = {"num_random_features": FEATURES_OF_NUMBER * key_dim}
    near = {"sliding_window": window}
    near_and_far = {**features, "exact_window": window}
    of_places = {"max_length": length}
    # by turns, one for each head
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
    """Logits of an encoder: of a token for each place, `(B, L, vocabulary_size)`, or
    of a class, `(B, 1, num_classes)`, from the mean over a sequence.

    Means over thousands of tokens hardly differ from sequence to sequence: batch
    normalization makes much of what differs, without which they learn very slowly.
    """

    def __init__(self, encoder, task, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.padded, self.classifies = encoder, task.padded, num_classes
        width = encoder.hidden_dim
        if num_classes:
            # the mean of the last some batches, as a run has only hundreds
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
    """An encoder with the attention of a row.

    All have as many parameters as that with exact attention, as nearly as the width of
    their feed-forward networks allows: what attention has more, those have less.
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
    """An encoder whose feed-forward networks have so many units."""
    keras.utils.set_random_seed(seed)
    num_heads = task.hidden_dim // task.key_dim
    causal = not task.num_classes
    rotates = task.position_embedding == "rotary"
    attention = attention_of(
        row, task.length, task.window, num_heads, task.key_dim, causal, rotates
    )
    ids = task.vocabulary_size + 1  # one for a token that is to be restored
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
        # what has no queries and keys to rotate learns its places
        position_embedding=None if rotates else "learned",
        seed=seed,
    )
