"""Forms that blocks and chunks of causal attention take."""

import numpy as np
import pytest

from keras_performer.ops.linear import chunkwise, log_pairs


class Forms:
    """Forms that the blocks of a computation took, in their order, backward too.

    Attributes:
        rare: list of bool arrays `(X, chunks)`, which chunks were rare.
        log_pairs: int, how often weights of pairs came from log-sum-exps.
    """

    def __init__(self):
        self.rare, self.log_pairs = [], 0

    def chunks(self):
        """Number of rare chunks in each block."""
        return [int(np.sum(rare)) for rare in self.rare]


@pytest.fixture
def forms(monkeypatch):
    """Counts forms; eager, a form that is not needed does not run."""
    found = Forms()
    references, weighted_sums = chunkwise.references, log_pairs._weighted_sums

    def recording(*args):
        result = references(*args)
        found.rare.append(result.rare.numpy())
        return result

    def counting(*args):
        found.log_pairs += 1
        return weighted_sums(*args)

    monkeypatch.setattr(chunkwise, "references", recording)
    monkeypatch.setattr(log_pairs, "_weighted_sums", counting)
    return found
