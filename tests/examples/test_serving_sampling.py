"""The draws of the service."""

import numpy as np
import pytest
import scipy.special

from examples.serving.sampling import Sampler

LOGITS = np.array([1.0, -np.inf, 3.0, 2.0, 3.0, -1.0], "float32")


@pytest.mark.parametrize(
    "temperature, top_k, allowed",
    [
        (1.0, None, [0, 2, 3, 4, 5]),
        (0.5, None, [0, 2, 3, 4, 5]),
        (1.0, 3, [2, 3, 4]),
        (2.0, 1, [2]),  # of two that are equal the lower id
        (1.0, 100, [0, 2, 3, 4, 5]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature, top_k, allowed):
    sampler = Sampler(temperature, top_k, seed=0)
    n = 4000
    counts = np.bincount([sampler.draw(LOGITS) for _ in range(n)], minlength=6)
    expected = np.zeros(6)
    expected[allowed] = scipy.special.softmax(LOGITS[allowed] / temperature)
    error = np.sqrt(n * expected * (1 - expected)) + 1e-9
    assert np.abs((counts - n * expected) / error).max() < 4.5


def test_zero_takes_the_likeliest_and_so_does_nearly_zero():
    assert Sampler(0).draw(LOGITS) == 2
    tiny = Sampler(1e-320, seed=1)
    assert {tiny.draw(LOGITS) for _ in range(40)} == {2, 4}


def test_what_is_no_number_is_no_token():
    for wrong in (np.nan, np.inf):
        logits = LOGITS.copy()
        logits[3] = wrong
        assert Sampler(0).draw(logits) is None and Sampler().draw(logits) is None
    assert Sampler().draw(np.full(3, -np.inf)) is None
