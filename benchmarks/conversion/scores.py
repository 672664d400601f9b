"""Masked tokens, replacements of trained attention, and the losses of models."""

import difflib
import functools
import gc
import math
import time
import typing

import keras
import numpy as np

from benchmarks.conversion.sources import SOURCES
from keras_performer import calibrate, convert_to_performer
from keras_performer.layers import LocalAttention

# Seeds of the masks in test examples, and in the tokens of a calibration.
SEED, CALIBRATION_SEED = 1, 2
# Tolerance of the mean loss of the exact model, for rounding.
ROUNDING = 1e-3
# Approximate number of masked tokens in a copy, and limits of the number of copies.
TOKENS_AT_ONCE = 15
FEWEST_PARTS, MOST_PARTS = 4, 6
# Sequences with a larger share of common tokens, in order, form a family.
MOST_IN_COMMON = 0.8
# Batch size of a model's examples.
BATCH = 24
WINDOW = 17  # keys at distances up to 16


class Examples(typing.NamedTuple):
    """Copies of sequences with masked tokens.

    `inputs` and `targets` are int32 `(R, T)`, padded with 0; `masked` is where they
    differ. Similar sequences have the same number in `families` `(R,)`.
    """

    inputs: np.ndarray
    targets: np.ndarray
    masked: np.ndarray
    families: np.ndarray

    def of(self, chosen):
        """Returns the examples where a bool array `(R,)` is true."""
        return Examples(*(array[chosen] for array in self))

    def families_of_tokens(self):
        """Returns the family of each masked token, in the order of `losses`."""
        return np.repeat(self.families, self.masked.sum(1))


def examples(sequences, mask_token, seed):
    """Masks each token of a sequence in at most one copy of the sequence.

    A sequence is divided into copies of about 15 masked tokens, at least 4; only the
    first 6 are kept. The first and last token are never masked.
    """
    random = np.random.default_rng(seed)
    family_of = families(sequences)
    inputs, targets, of_rows = [], [], []
    for tokens, family in zip(sequences, family_of, strict=True):
        places = random.permutation(np.arange(1, len(tokens) - 1))
        num_parts = max(FEWEST_PARTS, len(tokens) // TOKENS_AT_ONCE)
        for part in np.array_split(places, num_parts)[:MOST_PARTS]:
            copy = np.array(tokens)
            copy[part] = mask_token
            inputs.append(copy)
            targets.append(tokens)
            of_rows.append(family)
    inputs, targets = padded(inputs), padded(targets)
    return Examples(inputs, targets, inputs != targets, np.array(of_rows))


def families(sequences):
    """Returns a number from 0 for each sequence; similar sequences share it.

    A model fitted to one sequence must not be tested on another of its family.
    """
    found = list(range(len(sequences)))
    for i, tokens in enumerate(sequences):
        for j in range(i):
            matcher = difflib.SequenceMatcher(None, tokens, sequences[j], False)
            if matcher.ratio() > MOST_IN_COMMON:
                old, new = found[i], found[j]
                found = [new if family == old else family for family in found]
    return np.unique(found, return_inverse=True)[1]


def padded(sequences):
    """Returns lists of tokens as an int32 array `(R, T)`, padded with 0."""
    array = np.zeros((len(sequences), max(map(len, sequences))), np.int32)
    for row, tokens in zip(array, sequences):
        row[: len(tokens)] = tokens
    return array


def losses(model, given):
    """Returns -log p of each masked token of `Examples`, in one float64 array."""
    starts = range(0, len(given.inputs), BATCH)
    parts = [given.inputs[start : start + BATCH] for start in starts]
    # eager, as tracing would take longer than it saves
    logits = np.concatenate([model(part, training=False).numpy() for part in parts])
    logits = logits[given.masked].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    of_targets = logits[np.arange(len(logits)), given.targets[given.masked]]
    return np.log(np.exp(logits).sum(-1)) - of_targets


def mean_of_values(source):
    """Returns the model with all attention logits 0: the average of all values."""
    model = source.model()
    for layer in model.layers:
        if isinstance(layer, keras.layers.MultiHeadAttention):
            for weight in layer.query_dense.weights:
                weight.assign(keras.ops.zeros_like(weight))
    return model


def converted(exact_window, source, feature_map="softmax"):
    """Returns the converted model."""
    options = dict(exact_window=exact_window, feature_map=feature_map, seed=0)
    return convert_to_performer(source.model(), **options)[0]


# Functions of a `Pretrained` that return a Keras model.
EXACT, CALIBRATED = "exact", "window + softmax, calibrated"
ROWS = {
    EXACT: lambda source: source.model(),
    "mean of V": mean_of_values,
    "window alone": lambda source: source.model(
        functools.partial(LocalAttention, sliding_window=WINDOW)
    ),
    "softmax": functools.partial(converted, None),
    "window + softmax": functools.partial(converted, WINDOW),
    "window + taylor": functools.partial(converted, WINDOW, feature_map="taylor"),
    CALIBRATED: functools.partial(converted, WINDOW),
}


def measured(package, name, folder):
    """Returns both names, the losses of a row, and the CPU seconds."""
    start = time.process_time()
    source = SOURCES[package](folder)
    found = losses_of(name, source, questions(source))
    return package, name, found, time.process_time() - start


def questions(source):
    """Returns the test `Examples` of a `Pretrained`."""
    return examples(source.sequences, source.mask_token, SEED)


def losses_of(name, source, given):
    """Returns the losses of a row as `losses` does.

    Each family is tested with a model that is calibrated with other families.
    """
    model = ROWS[name](source)
    if name != CALIBRATED:
        return losses(model, given)
    found = np.empty(given.masked.sum())
    own = families(source.sequences)
    for family in np.unique(given.families):
        keras.utils.set_random_seed(0)
        others = [x for x, of in zip(source.sequences, own) if of != family]
        tokens = calibration_tokens(others, source.mask_token)
        # every second row is enough: copies of a sequence differ only in their masks
        fitted, _ = calibrate(model, tokens[::2], verbose=0)
        part = losses(fitted, given.of(given.families == family))
        found[given.families_of_tokens() == family] = part
        # frees the memory that TensorFlow keeps for the model
        keras.backend.clear_session()
        gc.collect()
    return found


def calibration_tokens(sequences, mask_token):
    """Returns sequences `(R, T)` with and without masks, since models see both."""
    masked = examples(sequences, mask_token, CALIBRATION_SEED).inputs
    return np.concatenate([padded(sequences), masked])


def check_exact(source, nll):
    """Raises `ValueError` if the exact model misses its expected score."""
    expected = source.exact_nll
    if expected is not None and abs(nll - expected) > ROUNDING:
        raise ValueError(
            f"The exact model of {source.name} must score {expected:.3f} on its own "
            f"sequences: its weights or tokens were read wrongly. Received: {nll:.3f}"
        )


def standard_error(values, clusters):
    """Returns the standard error of a mean of values that correlate within clusters.

    The error is infinite if all clusters `(n,)` are equal.
    """
    rest = values - values.mean()
    names = np.unique(clusters)
    if len(names) == 1:
        return math.inf
    sums = np.array([rest[clusters == name].sum() for name in names])
    correction = len(names) / (len(names) - 1)
    return math.sqrt(correction * (sums**2).sum()) / len(values)
