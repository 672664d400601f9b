"""Small models to train: the same stack of blocks with different attentions."""

import math

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.learning import published
from keras_performer import PerformerAttention
from keras_performer.layers import EmbeddingLayer, ExactAttention, LocalAttention

NUM_LAYERS = 2
# The least number of units in a feed-forward network.
NARROWEST = 8
WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
# The controls, and features without and with a window.
ROWS = (
    *(WITHOUT, EXACT, WINDOW, "softmax", "taylor"),
    *("window + softmax", "window + taylor"),
)
# Rows that `--full` adds to tasks where they matter. Further rows of the stored results
# (ALiBi, `qk_norm`, redraws and others) left after commit dbe6cf37.
FURTHER = (
    "window + softmax, high gain",
    *("no attention, conv", "exact, conv", "window, conv", "window + softmax, conv"),
    *("exact, gate", "window, gate", "softmax, gate", "window + softmax, gate"),
    "window + softmax, gains in turn, gate",
    *("window, gate, conv", "window + softmax, gate, conv"),
    *(f"window + softmax, gate, {number} features" for number in (64, 128)),
    *("window + softmax, 128 features", "window + softmax, high gain, 128 features"),
)
# The last block has exact attention, the other blocks the row's.
EXACT_LAST = "exact last"
# A convolution over this many tokens precedes the attention of each block.
CONV, CONV_KERNEL_SIZE = "conv", 4
# The initial log-gain of far keys, 0 if it is not named.
HIGH_GAIN, GAIN = "high gain", 2.0
# Initial log-gains that alternate from head to head.
GAINS_IN_TURN, TURNS = "gains in turn", (-4.0, 2.0)
# A forget gate lets weights fall with the distance. A long gate starts with a decay
# that is slow enough for the length of the task, as in `PerformerLM`.
GATE, LONG_GATE = "gate", "long gate"
# "64 features": the number of random features, 256 if it is not named.
FEATURES = " features"


class PairsOfTokens(EmbeddingLayer):
    """Embeds a token and its predecessor, so that attention need not find it."""

    def __init__(self, vocabulary_size, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.own = keras.layers.Embedding(vocabulary_size, hidden_dim)
        self.before = keras.layers.Embedding(vocabulary_size, hidden_dim)

    def build(self, input_shape):
        self.own.build(input_shape)
        self.before.build(input_shape)

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, 1), tf.int32)

    def call(self, inputs, state):
        shifted = tf.concat([state, inputs[:, :-1]], 1)
        return self.own(inputs) + self.before(shifted), (), inputs[:, -1:]


class Reader(keras.Model):
    """Computes logits `(B, L, vocabulary_size)` of tokens, or `(B, 1, num_classes)`.

    Classes are read from the mean over a sequence. Means over hundreds of tokens hardly
    differ between sequences. Batch normalization enlarges the differences; without it
    models learn very slowly.
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


def make_model(task, row, key_dim, seed, width=None):
    """Makes a model of `NUM_LAYERS` blocks with the attention of a row.

    The `width` of feed-forward networks defaults to `feed_forward_width`.
    """
    width = width or feed_forward_width(task, row, key_dim)
    keras.utils.set_random_seed(seed)
    attention = attention_of(row, task, key_dim)
    if EXACT_LAST in row:
        attention = [attention] * (NUM_LAYERS - 1) + [EXACT]
    conv_kernel_size = CONV_KERNEL_SIZE if row.endswith(f", {CONV}") else None
    ids, head, embedding = task.vocabulary_size, None, None
    if task.has_reader:
        # the models of the stored results had one id that no token has
        ids, head = ids + 1, keras.layers.Identity()
    else:
        # here the stored results do not count the seeds that `attention` has taken
        keras.utils.set_random_seed(seed)
    if not task.num_classes:
        embedding = PairsOfTokens(ids, task.hidden_dim)
    model = keras_performer.PerformerLM(
        ids,
        max_length=task.length,
        num_layers=NUM_LAYERS,
        num_heads=task.hidden_dim // key_dim,
        hidden_dim=task.hidden_dim,
        intermediate_dim=width,
        causal=not task.num_classes,
        attention=attention,
        conv_kernel_size=conv_kernel_size,
        embedding=embedding,
        head=head,
        position_shape=task.grid,
        position_embedding=task.position_embedding,
        seed=seed,
    )
    return Reader(model, task) if task.has_reader else model


def feed_forward_width(task, row, key_dim):
    """Returns four times the model's width, or another width for equal parameters.

    Models without attention or with a published attention have nearly as many
    parameters as the model with exact attention. Weights of other options, such as a
    gate, are added to these.
    """
    width, (kind, *_) = 4 * task.hidden_dim, row.split(", ")
    if kind != WITHOUT and kind not in published.ROWS:
        return width
    exact, own = (
        count_parameters(make_model(task, name, key_dim, seed=0, width=width))
        for name in (EXACT, kind)
    )
    # a unit has a weight from and to each channel of its block, and a bias
    of_unit = NUM_LAYERS * (2 * task.hidden_dim + 1)
    return max(width + round((exact - own) / of_unit), NARROWEST)


def count_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def attention_of(row, task, key_dim):
    """Makes the attention layer of a row; returns "none" for no attention."""
    if row in published.ROWS:
        return published.attention_of(row, task, key_dim)
    num_heads = task.hidden_dim // key_dim
    common = dict(num_heads=num_heads, key_dim=key_dim, causal=not task.num_classes)
    row, *options = row.split(", ")
    if row == WITHOUT:
        return "none"
    common["forget_gate"] = bool({GATE, LONG_GATE} & {*options})
    if LONG_GATE in options:
        common["forget_gate_bias"] = 2.0, max(7.0, math.log(4 * task.length))
    if row == EXACT:
        return ExactAttention(**common)
    if row == WINDOW:
        return LocalAttention(**common, sliding_window=task.window)
    *window, feature_map = row.split(" + ")
    gain = GAIN if HIGH_GAIN in options else 0.0
    if GAINS_IN_TURN in options:
        gain = [TURNS[head % 2] for head in range(num_heads)]
    if feature_map != "taylor":
        common["num_random_features"] = 256
    for option in options:
        if option.endswith(FEATURES):
            common["num_random_features"] = int(option.removesuffix(FEATURES))
    return PerformerAttention(
        **common,
        feature_map=feature_map,
        exact_window=task.window if window else None,
        initial_log_gain=gain,
    )


def numbers_in_state(row, task, key_dim):
    """Returns the size of a causal layer's state for one sequence.

    Counts the first layer if the last one is exact; ignores the state of a convolution.
    """
    if row.startswith(WITHOUT):
        return 0
    if row.startswith(EXACT):
        return task.length * 2 * task.hidden_dim
    if task.num_classes or row in published.ROWS:
        return None
    state = attention_of(row, task, key_dim).get_initial_state(1)["attention"]
    return sum(int(x.shape.num_elements()) for x in state.values())
