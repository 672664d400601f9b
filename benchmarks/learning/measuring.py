"""How well a model does on data that it was not trained on."""

import numpy as np
import tensorflow as tf


def measuring(model, task):
    """A function that says how well the model does, as it then is, on held-out data."""
    answers = answering(model, task)
    return lambda: answers()[task.measure]


def answering(model, task):
    """The same in a dict, as "accuracy" and in "bits"."""
    held_out = task.held_out()

    @tf.function(autograph=False)
    def sums(inputs, targets, weights):
        logits = model(inputs)
        right = tf.argmax(logits, -1, output_type=tf.int32) == targets
        right = tf.reduce_sum(tf.cast(right, tf.float32) * weights)
        total = tf.reduce_sum(weights)
        return right, bits(logits, targets, weights) * total, total

    def answers():
        parts = [sums(*map(tf.constant, batch)) for batch in held_out]
        right, loss, total = map(float, np.sum(parts, axis=0))
        return {"accuracy": right / total, "bits": loss / total}

    return answers


def bits(logits, targets, weights):
    """The mean cross entropy of what is asked, in bits."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights) / tf.math.log(2.0)
