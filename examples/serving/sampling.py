"""Samples tokens from logits."""

import numpy as np


class Sampler:
    """Samples the tokens of one sequence.

    Each sampler has its own random numbers, so equal seeds give equal tokens whatever
    other sequences do.

    Args:
        temperature: float that divides the logits; 0 takes the likeliest token.
        top_k: int, sample from the k likeliest tokens only; `None` for all.
        seed: int; `None` for a new one each time.
    """

    def __init__(self, temperature=1.0, top_k=None, seed=None):
        self.temperature = temperature
        self.top_k = top_k
        self._random = np.random.default_rng(seed)

    def draw(self, logits):
        """Samples from logits of shape `(V,)`; a token with logit -inf never comes.

        Returns:
            The token, an int, or `None` if the logits are not finite.
        """
        largest = logits.max()
        if not np.isfinite(largest):  # NaN is larger than all
            return None
        if self.temperature == 0:
            return int(logits.argmax())
        ids = np.arange(len(logits))
        if self.top_k is not None:  # lower ids come first among equally likely ones
            ids = np.argsort(-logits, kind="stable")[: self.top_k]
        # relative to the largest logit, so that no temperature gives infinite weights
        relative = (logits[ids] - largest).astype("float64")
        with np.errstate(over="ignore"):  # -inf is right
            reached = np.exp(relative / self.temperature).cumsum()
        drawn = self._random.random() * reached[-1]
        return int(ids[np.searchsorted(reached, drawn, side="right")])
