"""Small models to train: the same stack of blocks with different attentions."""

import math

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.learning import published
from benchmarks.learning.alibi import AlibiExact, AlibiLocal, AlibiPerformer
from keras_performer import PerformerAttention, feature_maps
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
# Rows that `--full` adds to tasks where they matter.
FURTHER = (
    *("favor+", "relu", "elu", "window + favor+"),
    *("exact, alibi", "window, alibi", "softmax, alibi", "window + softmax, alibi"),
    *("exact, qk_norm", "softmax, qk_norm", "taylor, qk_norm"),
    *("softmax, redraw", "window + taylor, qk_norm"),
    *("window + softmax, low gain", "window + taylor, low gain"),
    *("window + softmax, high gain", "window, exact last"),
    *("window + softmax, exact last", "no attention, conv", "exact, conv"),
    *("window, conv", "softmax, conv", "window + softmax, conv"),
    *("window + taylor, conv", "window, alibi, conv", "window + softmax, alibi, conv"),
    *("exact, gate", "window, gate", "softmax, gate", "window + softmax, gate"),
    *("window + taylor, gate", "window + softmax, gains in turn"),
    *("window + softmax, gains in turn, gate", "window, gate, conv"),
    *("window + softmax, gate, conv", "window + softmax, gains in turn, gate, conv"),
    *(f"window + softmax, gate, {number} features" for number in (32, 64, 128)),
    *(f"window + softmax, gate, {number} features, learned" for number in (32, 64)),
    *("window, half gate", "window + softmax, half gate"),
    "window + softmax, gains in turn, gate, 128 features",
    *("window + softmax, 128 features", "window + softmax, high gain, 128 features"),
)
# The last block has exact attention, the other blocks the row's.
EXACT_LAST = "exact last"
# A convolution over this many tokens precedes the attention of each block.
CONV, CONV_KERNEL_SIZE = "conv", 4
# Features are redrawn each time after this many steps.
REDRAW, REDRAW_STEPS = "redraw", 50
# Initial log-gains of far keys.
GAINS = {"low gain": -3.5, "high gain": 2.0}
# Initial log-gains that alternate from head to head.
GAINS_IN_TURN, TURNS = "gains in turn", (-4.0, 2.0)
# A forget gate lets weights fall with the distance. A long gate starts with a decay
# that is slow enough for the length of the task, as in `PerformerLM`.
GATE, LONG_GATE = "gate", "long gate"
# Every other head begins with a bias at which a gate is one and has no gradient.
HALF_GATE, OPEN_BIAS = "half gate", 30.0
# "64 features": the number of random features, 256 if it is not named.
FEATURES = " features"
# The rows of the projection train with the model.
LEARNED = "learned"


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


@keras.saving.register_keras_serializable("benchmarks")
class LearnedFeatures(feature_maps.SoftmaxFeatures):
    """Softmax features with a projection of each head, which trains."""

    trainable = True

    def draw_for_heads(self, num_heads, num_features, head_dim, seed):
        seeds = [seed + [0, 1000 * head] for head in range(num_heads)]
        return tf.stack([self.draw(num_features, head_dim, seed) for seed in seeds])


class ClassOfSequence(keras.layers.Layer):
    """Computes logits `(B, 1, num_classes)` from the mean over a sequence."""

    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.logits = keras.layers.Dense(num_classes)

    def build(self, input_shape):
        self.logits.build(input_shape)

    def call(self, x):
        return self.logits(tf.reduce_mean(x, 1, keepdims=True))


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
    ids, embedding = task.vocabulary_size, None
    if task.has_reader:
        # the models of the stored results had one id that no token has
        ids, head = ids + 1, keras.layers.Identity()
    else:
        # here the stored results do not count the seeds that `attention` has taken
        keras.utils.set_random_seed(seed)
        head = ClassOfSequence(task.num_classes) if task.num_classes else None
    if not task.num_classes:
        make_embedding = task.embedding or PairsOfTokens
        embedding = make_embedding(ids, task.hidden_dim)
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
    common["qk_norm"] = "qk_norm" in options
    if {GATE, LONG_GATE, HALF_GATE} & {*options}:
        common["forget_gate"] = True
    if LONG_GATE in options:
        common["forget_gate_bias"] = 2.0, max(7.0, math.log(4 * task.length))
    if HALF_GATE in options:
        common["forget_gate_bias"] = [OPEN_BIAS] * num_heads
        common["forget_gate_bias"][::2] = np.linspace(2.0, 7.0, num_heads // 2)
    exact, local, performer = ExactAttention, LocalAttention, PerformerAttention
    if "alibi" in options:
        exact, local, performer = AlibiExact, AlibiLocal, AlibiPerformer
    if row == EXACT:
        return exact(**common)
    if row == WINDOW:
        return local(**common, sliding_window=task.window)
    *window, feature_map = row.split(" + ")
    gain = sum(GAINS.get(name, 0.0) for name in options)
    if GAINS_IN_TURN in options:
        gain = [TURNS[head % 2] for head in range(num_heads)]
    if feature_map != "taylor":
        common["num_random_features"] = 256
    for option in options:
        if option.endswith(FEATURES):
            common["num_random_features"] = int(option.removesuffix(FEATURES))
    return performer(
        **common,
        feature_map=LearnedFeatures() if LEARNED in options else feature_map,
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
