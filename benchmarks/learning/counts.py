"""A baseline without a model, from the counts of tokens.

It ignores distances between tokens. A model that is no better has not learned from
distant tokens.
"""

import functools

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

# The row of the baseline.
ROW = "token counts"
# Sequences whose tokens are counted, and sequences sampled at once.
NUM_COUNTED, AT_ONCE = 4000, 64


def result(task, seed):
    """Returns the held-out accuracy of a task of classes, else bits of a token."""
    control = histogram_accuracy if task.num_classes else pair_bits
    random, batches = np.random.default_rng(seed), []
    for start in range(0, NUM_COUNTED, AT_ONCE):
        batches.append(task.draw(random, min(AT_ONCE, NUM_COUNTED - start)))
    return round(control(batches, task.held_out(), task.vocabulary_size), 4)


def histogram_accuracy(training, held_out, vocabulary_size):
    """Returns the accuracy of logistic regression on token frequencies."""
    count = functools.partial(histograms, vocabulary_size=vocabulary_size)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    with threadpool_limits(1):  # more threads would only wait for each other
        model.fit(*count(training))
    return float(model.score(*count(held_out)))


def histograms(batches, vocabulary_size):
    """Returns square roots of token frequencies, and classes, of all batches."""
    features, targets = [], []
    for inputs, labels, _ in batches:
        counts = [np.bincount(row, minlength=vocabulary_size) for row in inputs]
        # roots, so that rare tokens differ from absent tokens
        features.append(np.sqrt(np.array(counts) / inputs.shape[1]))
        targets.append(labels[:, 0])
    return np.concatenate(features), np.concatenate(targets)


def pair_bits(training, held_out, vocabulary_size):
    """Returns bits of a token given its predecessor, by counts that start at 1/2."""
    counts = np.full((vocabulary_size, vocabulary_size), 0.5)
    for inputs, targets, weights in training:
        np.add.at(counts, (inputs, targets), weights)
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    sums = [((w * bits[x, y]).sum(), w.sum()) for x, y, w in held_out]
    return float(np.divide(*np.sum(sums, axis=0)))
