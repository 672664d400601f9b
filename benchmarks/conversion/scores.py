"""What a row loses against exact attention, and how sure that is."""

import dataclasses
import gc
import math

import keras
import numpy as np

from benchmarks.conversion import masking
from keras_performer import PerformerAttention

# That of the tokens to guess, and that of the masks in what a row is fitted to.
SEED, CALIBRATION_SEED = 1, 2
# What rounding may change of the mean loss of the exact model.
ROUNDING = 1e-3


@dataclasses.dataclass(frozen=True)
class Score:
    """The mean loss of a row, less that of exact attention, and its standard error."""

    name: str
    nll: float
    lost: float
    standard_error: float
    seconds: float


def score(name, losses, exact, families, seconds):
    """The `Score` of a row.

    Args:
        name: str.
        losses, exact: arrays `(n,)`, of the row and of exact attention.
        families: int array `(n,)`.
        seconds: float, what the row took.
    """
    return Score(name, losses.mean(), *paired(losses, exact, families), seconds)


def paired(losses, others, families):
    """The mean by which losses are above others, token by token, and its error."""
    differences = losses - others
    return differences.mean(), standard_error(differences, families)


def questions(source):
    """The `masking.Examples` of a `Pretrained`."""
    return masking.examples(source.sequences, source.mask_token, SEED)


def parts_of(row, source):
    """Of which families of sequences the losses of a row are found one by one.

    Args:
        row: `rows.Row`.
        source: `Pretrained`.

    Returns:
        List of ints, or `[None]` for all at once if nothing is fitted to the others;
        empty if the row is of further sequences, and there are none.
    """
    if row.further and source.further is None:
        return []
    if row.fit is None:
        return [None]
    return [int(family) for family in np.unique(masking.families(source.sequences))]


def losses_of(row, model, source, given, num_draws, family=None):
    """The losses of a row, as `masking.losses`.

    Args:
        row, source: as in `parts_of`.
        model: what the row has made of the source.
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
    """Sequences that have little in common with those of a family.

    Args:
        source, family: as in `losses_of`.
        further: bool, whether those of which nothing is asked are among them.
    """
    asked = masking.families(source.sequences) == family
    more = source.further() if further else []
    found = source.sequences + [x for x in more if x not in source.sequences]
    families = masking.families(found)
    own = set(families[: len(asked)][asked])
    return [tokens for tokens, other in zip(found, families) if other not in own]


def joined(parts, given):
    """The losses of all families in the order of those of `masking.losses`.

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
        draws.append(masking.losses(model, given))
    keras.backend.clear_session()
    gc.collect()
    return np.mean(draws, axis=0)


def redraw(model):
    for layer in model.layers:
        if isinstance(layer, PerformerAttention):
            layer.redraw_features()


def calibration_tokens(sequences, mask_token):
    """Sequences `(R, T)` as they are, and with masks, as a model is used with both."""
    masked = masking.examples(sequences, mask_token, CALIBRATION_SEED).inputs
    return np.concatenate([masking.padded(sequences), masked])


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
    """Of the mean of values, those of a cluster not being independent.

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
