"""What counting tokens gets right: the control beside every task.

It knows nothing of what stands far from what: a model that does no better has not
learned that either.
"""

import collections

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

# Sequences that are drawn, and counted, at once.
AT_ONCE = 64


def histogram_accuracy(
    draw, held_out, num_training, vocabulary_size, pairs=False, seed=0
):
    """The accuracy of logistic regression on how often each token is there.

    Args:
        draw: function of a random generator and a batch size that returns inputs,
            targets of shape `(B, 1)` and weights.
        held_out: list of such batches, to measure on.
        num_training: int, sequences or pairs to fit to.
        vocabulary_size: int.
        pairs: bool, inputs are of shape `(2 * B, L)`, first and second sequences; what
            counts is how much their two histograms differ, token by token.
        seed: int, of the sequences to fit to.

    Returns:
        float between 0 and 1.
    """
    training = batches_of(draw, num_training, seed)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    given = histograms(training, vocabulary_size, pairs)
    with threadpool_limits(1):  # so little that more only wait for each other
        model.fit(*given)
    return float(model.score(*histograms(held_out, vocabulary_size, pairs)))


def batches_of(draw, num_examples, seed):
    """Yields batches with so many sequences or pairs together."""
    random = np.random.default_rng(seed)
    for start in range(0, num_examples, AT_ONCE):
        yield draw(random, min(AT_ONCE, num_examples - start))


def histograms(batches, vocabulary_size, pairs=False):
    """Returns square roots of shares of tokens, and targets, of all batches.

    Args:
        batches: iterable of inputs, targets and weights.
        vocabulary_size: int.
        pairs: bool, as in `histogram_accuracy`.
    """
    features, targets = [], []
    for inputs, labels, _ in batches:
        counts = [np.bincount(row, minlength=vocabulary_size) for row in inputs]
        # roots, in which a rare token that is there differs from one that is not
        shares = np.sqrt(np.array(counts) / inputs.shape[1])
        if pairs:
            first, second = np.split(shares, 2)
            shares = np.abs(first - second)
        features.append(shares)
        targets.append(labels[:, 0])
    return np.concatenate(features), np.concatenate(targets)


def first_token_accuracy(draw, held_out, num_training, vocabulary_size, seed=0):
    """The accuracy of the most frequent class for each first token.

    Args:
        draw, held_out, num_training: as in `histogram_accuracy`.
        vocabulary_size: int.
        seed: int, of the sequences to count in.

    Returns:
        float between 0 and 1. A first token that was not seen counts as wrong.
    """
    counts = collections.defaultdict(collections.Counter)
    for inputs, targets, _ in batches_of(draw, num_training, seed):
        for first, label in zip(inputs[:, 0].tolist(), targets[:, 0].tolist()):
            counts[first][label] += 1
    answers = np.full(vocabulary_size, -1)
    for first, labels in counts.items():
        answers[first] = labels.most_common(1)[0][0]
    right = [answers[x[:, 0]] == y[:, 0] for x, y, _ in held_out]
    return float(np.concatenate(right).mean())


def pair_bits(draw, held_out, num_training, vocabulary_size, seed=0):
    """Bits of a token where only the token before it is known.

    Args:
        draw: as in `histogram_accuracy`, with a target at each place.
        held_out: list of batches, to measure on.
        num_training: int, sequences in which pairs are counted, each from 1/2 on.
        vocabulary_size: int.
        seed: int, of these sequences.

    Returns:
        float, the mean of all places, by their weights.
    """
    counts = np.full((vocabulary_size, vocabulary_size), 0.5)
    for inputs, targets, weights in batches_of(draw, num_training, seed):
        np.add.at(counts, (inputs, targets), weights)
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    sums = [((w * bits[x, y]).sum(), w.sum()) for x, y, w in held_out]
    return float(np.divide(*np.sum(sums, axis=0)))
