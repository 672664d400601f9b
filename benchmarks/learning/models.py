"""Small models to train: the same stack of blocks with different attentions."""

import math

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.learning.alibi import AlibiExact, AlibiLocal, AlibiPerformer
from keras_performer import PerformerAttention, feature_maps
from keras_performer.layers import EmbeddingLayer, ExactAttention, LocalAttention
from keras_performer.layers.choice import positions_of

NUM_LAYERS = 2
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


def make_model(task, row, key_dim, seed):
    """Makes a model of `NUM_LAYERS` blocks with the attention of a row."""
    attention = attention_of(row, task, key_dim)
    if EXACT_LAST in row:
        attention = [attention] * (NUM_LAYERS - 1) + [EXACT]
    conv_kernel_size = CONV_KERNEL_SIZE if row.endswith(f", {CONV}") else None
    keras.utils.set_random_seed(seed)
    embedding = head = None
    if task.num_classes:
        head = ClassOfSequence(task.num_classes)
    else:
        make_embedding = task.embedding or PairsOfTokens
        embedding = make_embedding(task.vocabulary_size, task.hidden_dim)
    return keras_performer.PerformerLM(
        task.vocabulary_size,
        max_length=task.length,
        num_layers=NUM_LAYERS,
        num_heads=task.hidden_dim // key_dim,
        hidden_dim=task.hidden_dim,
        intermediate_dim=feed_forward_width(task.hidden_dim, attention),
        causal=not task.num_classes,
        attention=attention,
        conv_kernel_size=conv_kernel_size,
        embedding=embedding,
        head=head,
        position_shape=task.grid,
        position_embedding=task.position_embedding,
        seed=seed,
    )


def feed_forward_width(hidden_dim, attention):
    """Returns four times `hidden_dim`; without attention, more for equal parameters.

    Attention has four square matrices with biases, and a normalization. A unit of the
    feed-forward network has a weight from and to each channel, and a bias.
    """
    width = 4 * hidden_dim
    if attention == "none":
        of_attention = 4 * hidden_dim**2 + 6 * hidden_dim
        width += round(of_attention / (2 * hidden_dim + 1))
    return width


def count_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def attention_of(row, task, key_dim):
    """Makes the attention layer of a row; returns "none" for no attention."""
    num_heads, grid = task.hidden_dim // key_dim, task.grid or (task.length,)
    _, rotary = positions_of(task.position_embedding, row, grid, key_dim)
    common = dict(
        num_heads=num_heads,
        key_dim=key_dim,
        causal=not task.num_classes,
        rotary=rotary,
    )
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
    if task.num_classes:
        return None
    state = attention_of(row, task, key_dim).get_initial_state(1)["attention"]
    return sum(int(x.shape.num_elements()) for x in state.values())
