"""Trains one model on one task, with or without pretraining on the task's inputs.

The baseline ignores distances between tokens. A model that is no better than token
counts has not learned from distant tokens.
"""

import dataclasses
import functools
import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.learning.training import figures, learn, record
from benchmarks.long_range import models

# Share of hidden tokens, as in BERT (arXiv 1810.04805, section 3.1).
HIDDEN_PART = 0.15
# Sequences whose tokens are counted, and sequences sampled at once.
NUM_COUNTED, AT_ONCE = 4000, 64


def train(task, row, seed, learning_rate, steps, warm_up_steps, evaluations):
    """Trains a model, or computes a baseline.

    Before `steps`, pretraining restores hidden tokens in `warm_up_steps`, with the same
    learning rate and without the task's answers. Returns a dict like
    `benchmarks.learning.training.train`. `"seconds"` and `"curve"` exclude pretraining;
    `"warm_up_seconds"` and `"warm_up_bits"` are its seconds and its last loss in bits.
    """
    began = time.perf_counter()
    rate = learning_rate
    if row == models.COUNTS:
        made = counted(task, seed)
    else:
        made = trained(task, row, seed, rate, steps, warm_up_steps, evaluations)
    told = dict(row=row, seed=seed, learning_rate=rate, steps=steps)
    return record(task, began, **{**told, "warm_up_steps": warm_up_steps, **made})


def trained(task, row, seed, learning_rate, steps, warm_up_steps, evaluations):
    """Trains a model; returns its figures."""
    model = models.make_model(task, row, seed)
    random = np.random.default_rng([seed, 7])
    warm_up = {}
    if warm_up_steps:
        restorer = models.Reader(model.encoder, task, num_classes=None)
        ((_, seconds, _, bits),) = learn(
            restorer, hiding(task), learning_rate, warm_up_steps, 1, random, decay=True
        )
        warm_up = {"warm_up_seconds": seconds, "warm_up_bits": bits}
    curve = learn(model, task, learning_rate, steps, evaluations, random, decay=True)
    return {**figures(model, curve), **warm_up}


def hiding(task):
    """Returns the task of restoring hidden tokens in a task's inputs."""

    def draw(random, batch_size):
        return hidden(task, random, task.draw(random, batch_size)[0])

    def held_out():
        inputs, _, _ = task.held_out()[0]
        return [hidden(task, np.random.default_rng(54321), inputs)]

    return dataclasses.replace(task, draw=draw, held_out=held_out, measure="bits")


def hidden(task, random, tokens):
    """Replaces some tokens by a mask token, and asks for them."""
    weights = (random.random(tokens.shape) < HIDDEN_PART).astype(np.float32)
    inputs = np.where(weights > 0, task.vocabulary_size, tokens).astype(np.int32)
    return inputs, tokens, weights


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
