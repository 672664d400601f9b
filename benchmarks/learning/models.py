"""The small models that are trained: one stack of blocks, its attention exchanged."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.learning import rows
from keras_performer.layers import EmbeddingLayer

NUM_LAYERS = 2


class PairsOfTokens(EmbeddingLayer):
    """A token and the one before it, which no attention need spend its time to find."""

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


class ClassOfSequence(keras.layers.Layer):
    """Logits `(B, 1, num_classes)` from the mean over a sequence."""

    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.logits = keras.layers.Dense(num_classes)

    def build(self, input_shape):
        self.logits.build(input_shape)

    def call(self, x):
        return self.logits(tf.reduce_mean(x, 1, keepdims=True))


def make_model(task, row, key_dim, seed):
    """A model of `NUM_LAYERS` blocks with the attention of a row."""
    num_heads = task.hidden_dim // key_dim
    attention = rows.of_blocks(row, task, NUM_LAYERS, num_heads, key_dim)
    return model_with(attention, task, key_dim, seed, rows.conv_kernel_size(row))


def model_with(attention, task, key_dim, seed, conv_kernel_size=None):
    """The same with an attention layer, "none", or a list of one for each block."""
    keras.utils.set_random_seed(seed)
    embedding = head = None
    if task.num_classes:
        head = ClassOfSequence(task.num_classes)
    else:
        embedding = PairsOfTokens(task.vocabulary_size, task.hidden_dim)
    return keras_performer.PerformerLM(
        task.vocabulary_size,
        task.length,
        NUM_LAYERS,
        task.hidden_dim // key_dim,
        task.hidden_dim,
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
    """Four times the model's, and more where that takes the place of attention.

    Attention has four square matrices with biases and a normalization, a unit of the
    feed-forward network one weight from and to each channel and a bias.
    """
    width = 4 * hidden_dim
    if attention == "none":
        of_attention = 4 * hidden_dim**2 + 6 * hidden_dim
        width += round(of_attention / (2 * hidden_dim + 1))
    return width


def count_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
