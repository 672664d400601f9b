"""Trains one model on one task, or computes a baseline without a model.

The baseline ignores distances between tokens. A model that is no better than token
counts has not learned from distant tokens.
"""

import functools
import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.learning.training import figures, learn, record
from benchmarks.long_range import models

# Sequences whose tokens are counted, and sequences sampled at once.
NUM_COUNTED, AT_ONCE = 4000, 64


def train(task, row, seed, learning_rate, steps, evaluations):
    """Trains a model, or computes a baseline.

    Returns a dict like `benchmarks.learning.training.train`.
    """
    began = time.perf_counter()
    if row == models.COUNTS:
        made = counted(task, seed)
    else:
        model = models.make_model(task, row, seed)
        given = steps, evaluations, np.random.default_rng([seed, 7])
        made = figures(model, learn(model, task, learning_rate, *given, decay=True))
    told = dict(row=row, seed=seed, learning_rate=learning_rate, steps=steps)
    return record(task, began, **told, **made)


def counted(task, seed):
    """Returns the figures of the baseline that only counts tokens."""
    control = histogram_accuracy if task.num_classes else pair_bits
    random, batches = np.random.default_rng(seed), []
    for start in range(0, NUM_COUNTED, AT_ONCE):
        batches.append(task.draw(random, min(AT_ONCE, NUM_COUNTED - start)))
    result = control(batches, task.held_out(), task.vocabulary_size)
    nothing = dict(window=None, threads=1, parameters=None, seconds=0.0, curve=[])
    return {**nothing, "result": round(result, 4)}


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
