"""Models: the same encoder with different attentions, and a layer for answers."""

import keras
import tensorflow as tf

import keras_performer
from benchmarks.learning.models import (
    EXACT,
    NUM_LAYERS,
    WINDOW,
    WITHOUT,
    PairsOfTokens,
    count_parameters,
)
from keras_performer import layers, zoo

PERFORMER = "Performer, window"
# With initial log-gains that alternate between heads, for near keys and for far keys.
GAINS, FIRST_GAINS = "Performer, window, gains", (-4.0, 2.0)
# With an initial log-gain that makes far keys count more.
HIGH_GAIN, FIRST_GAIN = "Performer, window, gain 2", 2.0
# With features that are not random; the head size determines their number.
TAYLOR = "Performer, window, taylor"
# A baseline without a model, from `training`.
COUNTS = "token counts"
# Rows of the core; the first four are the controls of every task.
CORE = (
    *(COUNTS, WITHOUT, EXACT, WINDOW),
    *(PERFORMER, GAINS, "Big Bird", "Linear Transformer"),
)
ROWS = (
    *(*CORE, HIGH_GAIN, TAYLOR),
    *("Performer", "Performer, relu", "Longformer", "Linformer", "Reformer"),
    *("Sinkhorn", "Synthesizer", "FNet", "gMLP", "MLP-Mixer"),
)
MODELS = tuple(row for row in ROWS if row != COUNTS)
# Rows whose memory grows with the square of the length.
QUADRATIC = EXACT, "Sinkhorn", "Synthesizer", "gMLP"
# Rows that cannot hide later tokens, or only predict classes.
NOT_CAUSAL = "Linformer", "FNet", "MLP-Mixer"
# Random features for each element of a head.
KEY_DIM, FEATURES_OF_NUMBER = 16, 4
# Buckets of Reformer.
NUM_BUCKETS = 16
# With exact attention, the feed-forward width is this multiple of the model's width.
WIDTHS = 4
# The least number of units in a feed-forward network.
NARROWEST = 8


def attention_of(row, task):
    """Returns the argument `attention` of `PerformerLM` for a row of `ROWS`.

    The window sets its own size on each side, sizes of blocks, Linformer's projections
    and units of MLP-Mixer.
    """
    if row == WITHOUT:
        return "none"
    length, window, sides = task.length, task.window, {"causal": not task.num_classes}
    mixers = {
        "FNet": lambda: zoo.FourierMixing("ortho", **sides),
        "gMLP": lambda: zoo.SpatialGatingUnit(length, task.hidden_dim, **sides),
        "MLP-Mixer": lambda: zoo.TokenMixing(length, window, **sides),
    }
    if row in mixers:
        return mixers[row]()
    num_heads = task.hidden_dim // KEY_DIM
    # alternates from head to head
    gains = [FIRST_GAINS[head % 2] for head in range(num_heads)]
    features = {"num_random_features": FEATURES_OF_NUMBER * KEY_DIM}
    near, far = {"sliding_window": window}, {**features, "exact_window": window}
    taylor = {"exact_window": window, "feature_map": "taylor"}
    of_places = {"max_length": length}
    random = {**of_places, "kind": "factorized_random", "rank": 8}
    hashes = {**near, "num_hashes": 4, "num_buckets": NUM_BUCKETS}
    performer = keras_performer.PerformerAttention
    kind, options = {
        PERFORMER: (performer, far),
        GAINS: (performer, {**far, "initial_log_gain": gains}),
        HIGH_GAIN: (performer, {**far, "initial_log_gain": FIRST_GAIN}),
        TAYLOR: (performer, taylor),
        "Performer": (performer, features),
        "Performer, relu": (performer, {**features, "feature_map": "relu"}),
        EXACT: (layers.ExactAttention, {}),
        WINDOW: (layers.LocalAttention, near),
        "Linear Transformer": (layers.LinearTransformerAttention, {}),
        "Longformer": (zoo.LongformerAttention, {**near, "num_global_tokens": 1}),
        "Big Bird": (zoo.BigBirdAttention, {"block_size": window // 2}),
        "Linformer": (zoo.LinformerAttention, {**of_places, "projection_dim": window}),
        "Reformer": (zoo.ReformerAttention, hashes),
        "Sinkhorn": (zoo.SinkhornAttention, {**of_places, "block_size": window}),
        "Synthesizer": (zoo.SynthesizerAttention, random),
    }[row]
    rotates = task.position_embedding == "rotary" and row != "Synthesizer"
    rotary = {"rotary": True} if rotates else {}
    return kind(num_heads, KEY_DIM, **options, **sides, **rotary)


class Reader(keras.Model):
    """Computes logits `(B, L, vocabulary_size)` of tokens, or `(B, 1, num_classes)`.

    Classes are read from the mean over a sequence. Means over thousands of tokens
    hardly differ between sequences. Batch normalization enlarges the differences;
    without it models learn very slowly.
    """

    def __init__(self, encoder, task, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.classifies = encoder, task.num_classes
        width = encoder.hidden_dim
        if self.classifies:
            # averages over few batches, as a run has only hundreds
            self.norm = keras.layers.BatchNormalization(momentum=0.9)
            self.norm.build((None, width))
        self.logits = keras.layers.Dense(task.num_classes or task.vocabulary_size)
        self.logits.build((None, width))
        self.built = True

    def call(self, inputs, training=None):
        x = self.encoder(inputs, training=training)
        if not self.classifies:
            return self.logits(x)
        x = self.norm(tf.reduce_mean(x, 1), training=training)
        return self.logits(x)[:, tf.newaxis]


def make_model(task, row, seed):
    """Makes an encoder with the attention of a row, and the layer for answers."""
    return Reader(make_encoder(task, row, seed), task)


def make_encoder(task, row, seed):
    """Makes an encoder with the attention of a row.

    The feed-forward width is chosen such that each encoder has nearly as many
    parameters as the encoder with exact attention.
    """
    wanted = parameters_with(task, EXACT, WIDTHS * task.hidden_dim)
    narrow = parameters_with(task, row, NARROWEST)
    # a unit has a weight from and to each channel of its block, and a bias
    of_unit = NUM_LAYERS * (2 * task.hidden_dim + 1)
    width = NARROWEST + round((wanted - narrow) / of_unit)
    return encoder_of_width(task, row, max(width, NARROWEST), seed)


def parameters_with(task, row, width):
    return count_parameters(encoder_of_width(task, row, width, seed=0))


def encoder_of_width(task, row, width, seed):
    """Makes an encoder whose feed-forward networks have `width` units."""
    keras.utils.set_random_seed(seed)
    attention = attention_of(row, task)
    ids = task.vocabulary_size + 1  # one is unused, as in the models of the results
    embedding = None
    if not task.num_classes:
        embedding = PairsOfTokens(ids, task.hidden_dim)
    return keras_performer.PerformerLM(
        ids,
        max_length=task.length,
        num_layers=NUM_LAYERS,
        num_heads=task.hidden_dim // KEY_DIM,
        hidden_dim=task.hidden_dim,
        intermediate_dim=width,
        causal=not task.num_classes,
        attention=attention,
        embedding=embedding,
        head=keras.layers.Identity(),
        position_shape=task.grid,
        # rows without queries and keys to rotate have weights for positions
        position_embedding=None if task.position_embedding == "rotary" else "learned",
        seed=seed,
    )
