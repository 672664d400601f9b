"""How well a model does on data that it was not trained on."""

import numpy as np
import tensorflow as tf


def measuring(model, task):
    """A function that says how well the model does, as it then is, on held-out data."""
    sums = summing(model, task)

    def measure():
        right, loss, asked = sums().sum(1)
        return float({"accuracy": right, "bits": loss}[task.measure] / asked)

    return measure


def summing(model, task):
    """A function that returns sums over each held-out sequence, of the model as it is.

    They are a float64 array `(3, sequences)`: right answers, bits, and questions.
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
        return np.concatenate(parts, 1).astype(np.float64)

    return now


def bits(logits, targets, weights):
    """The mean cross entropy of what is asked, in bits."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights) / tf.math.log(2.0)
