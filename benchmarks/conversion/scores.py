"""Tokens to guess, what takes the place of trained attention, and what that loses."""

import collections.abc
import dataclasses
import difflib
import functools
import gc
import math
import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.conversion.sources import SOURCES
from keras_performer import (
    PerformerAttention,
    calibrate,
    convert_to_performer,
    transfer_attention,
)
from keras_performer.layers import LocalAttention

# That of the tokens to guess, and that of the masks in what a row is fitted to.
SEED, CALIBRATION_SEED = 1, 2
# What rounding may change of the mean loss of the exact model.
ROUNDING = 1e-3
# How many tokens of a sequence are masked at once, about, and in how many copies.
TOKENS_AT_ONCE = 15
FEWEST_PARTS, MOST_PARTS = 4, 6
# Sequences that have more of their tokens in common, in order, are one family.
MOST_IN_COMMON = 0.8
# How many examples a model is given at once.
BATCH = 24
WINDOW = 17  # keys up to 16 places off
# Of `transfer_attention`, and how many sequences each sees.
TRANSFER_STEPS, AT_ONCE = 200, 2


@dataclasses.dataclass(frozen=True)
class Examples:
    """Copies of sequences in which tokens are masked.

    Args:
        inputs, targets: int32 `(R, T)`, padded with 0: tokens, and what they were.
        masked: bool `(R, T)`.
        families: int `(R,)`; the sequences of a family are alike.
    """

    inputs: np.ndarray
    targets: np.ndarray
    masked: np.ndarray
    families: np.ndarray

    def __getitem__(self, rows):
        arrays = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Examples(*(array[rows] for array in arrays))

    def families_of_tokens(self):
        """The families of all masked tokens, in the order of `losses`."""
        return np.repeat(self.families, self.masked.sum(1))


def examples(sequences, mask_token, seed):
    """Hides each token of a sequence in one copy of it at most.

    As many copies as leave about 15 masked tokens in each, at least 4; of more than 6
    the first 6. The tokens at both ends stay.

    Args:
        sequences: lists of tokens.
        mask_token: int.
        seed: int.
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
    """Numbers from 0; equal for sequences that are much the same.

    What is fitted to one of a family and tested on another was fitted to the test.
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
    """An int32 array `(R, T)` of lists of tokens, filled up with 0."""
    array = np.zeros((len(sequences), max(map(len, sequences))), np.int32)
    for row, tokens in zip(array, sequences):
        row[: len(tokens)] = tokens
    return array


def losses(model, given):
    """-log p of each masked token, float64, one example after the other.

    Args:
        model: gives logits `(R, T, vocabulary)` of tokens `(R, T)`.
        given: `Examples`.
    """
    starts = range(0, len(given.inputs), BATCH)
    parts = [given.inputs[start : start + BATCH] for start in starts]
    # not compiled: that would take longer than it saves
    logits = np.concatenate([model(part, training=False).numpy() for part in parts])
    logits = logits[given.masked]
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    of_targets = logits[np.arange(len(logits)), given.targets[given.masked]]
    return np.log(np.exp(logits).sum(-1)) - of_targets


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to change a trained model.

    Args:
        name: str.
        make: function of a `Pretrained` that returns a Keras model.
        random: bool, whether the model has random features that can be redrawn.
        fit: function of that model, the `Pretrained` and tokens `(R, T)` that returns
            the model fitted to these: for each family of sequences to those of others.
            `None` where nothing is fitted.
        further: bool, whether these are of `Pretrained.further`, too.
        beside: str, the name of a row that it is to be better than; or `None`.
    """

    name: str
    make: collections.abc.Callable
    random: bool = False
    fit: collections.abc.Callable | None = None
    further: bool = False
    beside: str | None = None


def exact(source):
    return source.model()


def mean_of_values(source):
    """All logits are 0: what is left of attention that knows nothing of the query."""
    model = source.model()
    for layer in model.layers:
        if isinstance(layer, keras.layers.MultiHeadAttention):
            for weight in layer.query_dense.weights:
                weight.assign(keras.ops.zeros_like(weight))
    return model


def window_alone(source):
    return source.model(functools.partial(LocalAttention, sliding_window=WINDOW))


def converted(feature_map, exact_window, source):
    """The trained model with random or Taylor features."""
    model, _ = convert_to_performer(
        source.model(),
        exact_window=exact_window,
        feature_map=feature_map,
        seed=0,
    )
    return model


def calibrated(model, source, tokens):
    # every second: of copies of a sequence, which differ by their masks
    model, _ = calibrate(model, tokens[::2], verbose=0)
    return model


def transferred(model, source, tokens):
    """Calibrated, then trained to attend as the trained model does."""
    tokens = np.random.default_rng(0).permutation(tokens)
    batches = tf.data.Dataset.from_tensor_slices(tokens)
    model, _ = transfer_attention(
        calibrated(model, source, tokens),
        source.model(),
        batches.batch(AT_ONCE, drop_remainder=True),
        num_steps=TRANSFER_STEPS,
        verbose=0,
    )
    return model


def performer(feature_map, exact_window=None, fit=None, further=False):
    name = f"window + {feature_map}" if exact_window else feature_map
    more = ", more data" if further else ""
    return Row(
        f"{name}, {fit.__name__}{more}" if fit else name,
        functools.partial(converted, feature_map, exact_window),
        random=feature_map != "taylor" and not fit,
        fit=fit,
        further=further,
        beside=f"{name}, calibrated{more}" if fit is transferred else None,
    )


EXACT = "exact"
ROWS = (
    Row(EXACT, exact),
    Row("mean of V", mean_of_values),
    Row("window alone", window_alone),
    performer("softmax"),
    performer("softmax", WINDOW),
    performer("softmax", WINDOW, calibrated),
)
# What `--full` adds.
FURTHER = (
    performer("favor+"),
    performer("taylor"),
    performer("favor+", WINDOW),
    performer("taylor", WINDOW),
    performer("softmax", WINDOW, transferred),
    performer("softmax", WINDOW, calibrated, further=True),
    performer("softmax", WINDOW, transferred, further=True),
)


def named(name):
    [row] = [row for row in ROWS + FURTHER if row.name == name]
    return row


def measured(package, name, family, num_draws, folder):
    """The losses of a part of a row, and the seconds of a processor that it took."""
    start = time.process_time()
    source, model = made(package, name, folder)
    keras.utils.set_random_seed(0)
    losses = losses_of(named(name), model, source, questions(source), num_draws, family)
    return package, name, family, losses, time.process_time() - start


@functools.lru_cache(maxsize=1)
def made(package, name, folder):
    """The `Pretrained`, and the model of a row: all parts of the row are of one."""
    source = SOURCES[package](folder)
    return source, named(name).make(source)


def paired(losses, others, families):
    """The mean by which losses are above others, token by token, and its error."""
    differences = losses - others
    return differences.mean(), standard_error(differences, families)


def questions(source):
    """The `Examples` of a `Pretrained`."""
    return examples(source.sequences, source.mask_token, SEED)


def parts_of(row, source):
    """Families of sequences for which a row finds its losses one by one.

    Returns:
        List of ints, or `[None]` for all at once if nothing is fitted to the others;
        empty if the row is of further sequences, and there are none.
    """
    if row.further and source.further is None:
        return []
    if row.fit is None:
        return [None]
    return [int(family) for family in np.unique(families(source.sequences))]


def losses_of(row, model, source, given, num_draws, family=None):
    """The losses of a row, as `losses`.

    Args:
        row: `Row`.
        model: what the row has made of the source.
        source: `Pretrained`.
        given: its `questions`.
        num_draws: int, how often random features are drawn; their losses are averaged.
        family: one of `parts_of`, whose losses these are.
    """
    if family is None:
        return mean_losses(model, given, num_draws if row.random else 1)
    others = sequences_of_others(source, family, row.further)
    tokens = calibration_tokens(others, source.mask_token)
    fitted = row.fit(model, source, tokens)
    return mean_losses(fitted, given[given.families == family], num_draws=1)


def sequences_of_others(source, family, further):
    """Sequences, also further ones, that have little in common with a family."""
    asked = families(source.sequences) == family
    more = source.further() if further else []
    found = source.sequences + [x for x in more if x not in source.sequences]
    family_of = families(found)
    own = set(family_of[: len(asked)][asked])
    return [tokens for tokens, other in zip(found, family_of) if other not in own]


def joined(parts, given):
    """The losses of all families in the order of those of `losses`.

    Args:
        parts: dict of the losses of each of `parts_of`.
        given: `questions`.
    """
    if None in parts:
        return parts[None]
    losses = np.empty(given.masked.sum())
    for family, of_family in parts.items():
        losses[given.families_of_tokens() == family] = of_family
    return losses


def mean_losses(model, given, num_draws):
    """Means over draws; what TensorFlow keeps of the model is given up after."""
    draws = []
    for draw in range(num_draws):
        if draw:
            redraw(model)
        draws.append(losses(model, given))
    keras.backend.clear_session()
    gc.collect()
    return np.mean(draws, axis=0)


def redraw(model):
    for layer in model.layers:
        if isinstance(layer, PerformerAttention):
            layer.redraw_features()


def calibration_tokens(sequences, mask_token):
    """Sequences `(R, T)` as they are, and with masks, as a model is used with both."""
    masked = examples(sequences, mask_token, CALIBRATION_SEED).inputs
    return np.concatenate([padded(sequences), masked])


def check_exact(source, nll):
    """Without this nothing else would mean anything.

    Raises:
        ValueError: if the exact model does not score what it should.
    """
    expected = source.exact_nll
    if expected is not None and abs(nll - expected) > ROUNDING:
        raise ValueError(
            f"The exact model of {source.name} must score {expected:.3f} on its own "
            f"sequences: its weights or tokens were read wrongly. Received: {nll:.3f}"
        )


def standard_error(values, clusters):
    """Standard error of the mean of values that depend on each other in a cluster.

    Args:
        values: array `(n,)`.
        clusters: array `(n,)` of numbers; infinite if all are equal.
    """
    rest = values - values.mean()
    names = np.unique(clusters)
    if len(names) == 1:
        return math.inf
    sums = np.array([rest[clusters == name].sum() for name in names])
    correction = len(names) / (len(names) - 1)
    return math.sqrt(correction * (sums**2).sum()) / len(values)
