"""Samples a token from logits."""

import numpy as np


class Sampler:
    """Draws the tokens of one sequence.

    It has its own random numbers, so that equal seeds give equal tokens whatever other
    sequences do.

    Args:
        temperature: float that divides the logits; 0 takes the likeliest token.
        top_k: int, draw from the k likeliest tokens only; `None` for all.
        seed: int; `None` for another one each time.
    """

    def __init__(self, temperature=1.0, top_k=None, seed=None):
        self.temperature = temperature
        self.top_k = top_k
        self._random = np.random.default_rng(seed)

    def draw(self, logits):
        """Draws from logits of shape `(V,)`; -inf is a token that is never drawn.

        Returns:
            The token, an int, or `None` if the logits are not finite.
        """
        largest = logits.max()
        if not np.isfinite(largest):  # NaN is larger than all
            return None
        if self.temperature == 0:
            return int(logits.argmax())
        ids = np.arange(len(logits))
        if self.top_k is not None:  # of equally likely ones lower ids come first
            ids = np.argsort(-logits, kind="stable")[: self.top_k]
        # relative to the largest, which no temperature then makes infinite
        relative = (logits[ids] - largest).astype("float64")
        with np.errstate(over="ignore"):  # -inf is right
            reached = np.exp(relative / self.temperature).cumsum()
        drawn = self._random.random() * reached[-1]
        return int(ids[np.searchsorted(reached, drawn, side="right")])
