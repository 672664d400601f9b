"""Which tokens a model has to guess, and how well it does."""

import dataclasses
import difflib

import numpy as np

# How many tokens of a sequence are masked at once, about, and in how many copies.
TOKENS_AT_ONCE = 15
FEWEST_PARTS, MOST_PARTS = 4, 6
# Sequences that have more of their tokens in common, in order, are one family.
MOST_IN_COMMON = 0.8
# How many examples a model is given at once.
BATCH = 24


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
