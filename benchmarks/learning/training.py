"""Trains one small model on one task, and notes how well it does and when."""

import time

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.learning import rows
from keras_performer.layers import EmbeddingLayer

NUM_LAYERS = 2
WARMUP_STEPS = 50
EVALUATIONS = 12


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
    keras.utils.set_random_seed(seed)
    num_heads = task.hidden_dim // key_dim
    embedding = head = None
    if task.num_classes:
        head = ClassOfSequence(task.num_classes)
    else:
        embedding = PairsOfTokens(task.vocabulary_size, task.hidden_dim)
    return keras_performer.PerformerLM(
        task.vocabulary_size,
        task.length,
        NUM_LAYERS,
        num_heads,
        task.hidden_dim,
        causal=not task.num_classes,
        attention=rows.attention(row, task, num_heads, key_dim),
        embedding=embedding,
        head=head,
        position_shape=task.grid,
        seed=seed,
    )


def train(task, row, key_dim, seed, learning_rate=None, steps=None):
    """Trains a model.

    Returns:
        Dict of numbers about the run, and its `"curve"`: lists of steps, seconds of
        training (without the first two steps, which trace), loss in bits of the last
        step, and what `Task.measure` says of held-out data.
    """
    model = make_model(task, row, key_dim, seed)
    learning_rate = learning_rate or task.learning_rate
    steps = steps or task.steps
    optimizer = keras.optimizers.Adam(learning_rate, beta_2=0.98, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(inputs, targets, weights):
        with tf.GradientTape() as tape:
            loss = bits(model(inputs, training=True), targets, weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function(autograph=False)
    def measured(inputs, targets, weights):
        logits = model(inputs)
        right = tf.argmax(logits, -1, output_type=tf.int32) == targets
        right = tf.reduce_sum(tf.cast(right, tf.float32) * weights)
        total = tf.reduce_sum(weights)
        return right, bits(logits, targets, weights) * total, total

    held_out = task.held_out()
    random = np.random.default_rng([seed, 7])
    curve, seconds = [], 0.0
    noted = set(np.linspace(0, steps, EVALUATIONS + 1, dtype=int)[1:])
    for index in range(1, steps + 1):
        optimizer.learning_rate.assign(learning_rate * min(1.0, index / WARMUP_STEPS))
        batch = [tf.constant(x) for x in task.draw(random, task.batch_size)]
        start = time.perf_counter()
        loss = float(step(*batch))
        if index > 2:
            seconds += time.perf_counter() - start
        if index in noted:
            sums = np.sum([measured(*map(tf.constant, b)) for b in held_out], axis=0)
            accuracy, loss_bits = sums[:2] / sums[2]
            value = accuracy if task.measure == "accuracy" else loss_bits
            curve.append(
                [index, round(seconds, 3), round(loss, 4), round(float(value), 4)]
            )
    return {
        "task": task.name,
        "row": row,
        "key_dim": key_dim,
        "seed": seed,
        "learning_rate": learning_rate,
        "steps": steps,
        "window": task.window,
        "parameters": sum(int(np.prod(w.shape)) for w in model.trainable_weights),
        "state": rows.numbers_in_state(row, task, task.hidden_dim // key_dim, key_dim),
        "result": curve[-1][3],
        "seconds": curve[-1][1],
        "curve": curve,
    }


def bits(logits, targets, weights):
    """The mean cross entropy of what is asked, in bits."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights) / tf.math.log(2.0)
