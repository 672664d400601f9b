"""A fixture that records the forms of blocks and chunks of causal attention."""

import numpy as np
import pytest

from keras_performer.ops.linear import chunkwise, log_pairs


class Forms:
    """Forms of the blocks of a computation, in order, with the backward pass.

    Attributes:
        rare: list of bool arrays `(X, chunks)`, true for rare chunks.
        log_pairs: int, number of times that log-sum-exps gave weights of pairs.
    """

    def __init__(self):
        self.rare, self.log_pairs = [], 0

    def chunks(self):
        """Returns the number of rare chunks in each block."""
        return [int(np.sum(rare)) for rare in self.rare]


@pytest.fixture
def forms(monkeypatch):
    """Records forms of eager calls, in which unneeded forms do not run."""
    found = Forms()
    references, log_weights = chunkwise.references, log_pairs._log_weights

    def recording(*args):
        result = references(*args)
        found.rare.append(result.rare.numpy()[..., 0, 0])
        return result

    def counting(*args):
        found.log_pairs += 1
        return log_weights(*args)

    monkeypatch.setattr(chunkwise, "references", recording)
    monkeypatch.setattr(log_pairs, "_log_weights", counting)
    return found
