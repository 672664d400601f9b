"""Trains one small model on one task, and records its results over time."""

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.learning import models

WARMUP_STEPS = 50
# Runs with at least this many steps use XLA, as `fit` does: compiling takes 50 steps.
COMPILED_FROM = 200


def train(task, row, key_dim, seed, learning_rate, steps, evaluations):
    """Trains a model.

    With one thread, seconds are CPU seconds: on an idle core these equal wall time, and
    other programs do not add to them.

    Returns:
        Dict of numbers about the run, with its `"curve"`: lists of steps, seconds of
        training (without the first two steps of each length, which trace), loss in bits
        of the last step, and `Task.measure` of held-out data. The curve ends before
        `steps` if `Task.enough` was reached.
    """
    began = time.perf_counter()
    model = models.make_model(task, row, key_dim, seed)
    random = np.random.default_rng([seed, 7])
    curve = learn(model, task, learning_rate, steps, evaluations, random)
    return {
        "task": task.name,
        "measure": task.measure,
        "row": row,
        "key_dim": key_dim,
        "seed": seed,
        "learning_rate": learning_rate,
        "steps": steps,
        "window": task.window,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "machine": runner.machine(),
        "tensorflow": tf.__version__,
        "parameters": models.count_parameters(model),
        "state": models.numbers_in_state(row, task, key_dim),
        "seconds": curve[-1][1],
        "curve": curve,
        "result": curve[-1][3],
        "seconds_in_all": round(time.perf_counter() - began, 1),
    }


def learn(model, task, learning_rate, steps, evaluations, random):
    """Trains a model, and measures it meanwhile; returns the curve of `train`."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    clock = time.process_time if threads == 1 else time.perf_counter
    compiles = steps >= COMPILED_FROM
    step = step_of(model, learning_rate, compiles, steps if task.decay else None)
    sums = summing(model, task)
    curve, seconds = [], 0.0
    noted = set(np.linspace(0, steps, evaluations + 1, dtype=int)[1:])
    index = 0
    for draw, batch_size, end in task.stages(steps):
        untimed = index + 2
        while index < end:
            index += 1
            batch = [tf.constant(x) for x in draw(random, batch_size)]
            start = clock()
            loss = float(step(index, *batch))
            if index > untimed:
                seconds += clock() - start
            if index in noted:
                right, lost, asked = sums().sum(-1)
                total = right if task.measure == "accuracy" else lost
                value = round(float(total / asked), 4)
                curve.append([index, round(seconds, 3), round(loss, 4), value])
                if task.enough is not None and value >= task.enough:
                    return curve
    return curve


def step_of(model, learning_rate, jit_compile, decay_steps=None):
    """Returns a training step: a function of its number, from 1, and a batch."""
    optimizer = keras.optimizers.Adam(learning_rate, beta_2=0.98, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compiled(inputs, targets, weights):
        with tf.GradientTape() as tape:
            loss = bits(model(inputs, training=True), targets, weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def step(index, *batch):
        rate = learning_rate * min(1.0, index / WARMUP_STEPS)
        if decay_steps is not None:
            rate *= 1 - (index - 1) / decay_steps
        optimizer.learning_rate.assign(rate)
        return compiled(*batch)

    return step


def summing(model, task):
    """Returns a function that sums over held-out sequences, with the current model.

    The function returns a float64 array `(3, sequences)`: right answers, bits, and
    questions.
    """
    held_out = task.held_out()

    @tf.function(autograph=False)
    def sums(inputs, targets, weights):
        logits = model(inputs)
        right = tf.argmax(logits, -1, output_type=tf.int32) == targets
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        loss /= tf.math.log(2.0)
        terms = tf.stack([tf.cast(right, tf.float32), loss, tf.ones_like(loss)])
        return tf.reduce_sum(terms * weights, -1)

    def now():
        parts = [sums(*map(tf.constant, batch)).numpy() for batch in held_out]
        return np.concatenate(parts, -1).astype(np.float64)

    return now


def bits(logits, targets, weights):
    """Returns the weighted mean of the cross entropy, in bits."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights) / tf.math.log(2.0)
