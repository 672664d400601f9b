"""`LocalAttention` beside the sliding window that Keras' newer layers have."""

import inspect

import keras
import numpy as np
import pytest

from keras_performer.layers import LocalAttention
from tests.layers.inputs import normal
from tests.layers.like_keras import copy_weights, results

HAS_WINDOW = (
    "sliding_window"
    in inspect.signature(keras.layers.GroupQueryAttention).parameters.keys()
    & inspect.signature(keras.layers.MultiHeadAttention).parameters.keys()
)
pytestmark = pytest.mark.skipif(
    not HAS_WINDOW, reason="This Keras has no sliding_window in its attention."
)
LENGTH, WIDTH = 13, 8


def pair(groups, window, causal):
    options = {
        "sliding_window": window,
        "bias_initializer": keras.initializers.RandomNormal(stddev=0.5, seed=6),
    }
    if groups is None:
        expected = keras.layers.MultiHeadAttention(6, 4, **options)
    else:
        expected = keras.layers.GroupQueryAttention(4, 6, groups, **options)
    layer = LocalAttention(
        6, 4, causal=causal, num_key_value_heads=groups or 6, **options
    )
    for each in expected, layer:
        each.build((2, None, WIDTH), (2, None, WIDTH))
    copy_weights(layer, expected)
    return expected, layer


@pytest.mark.parametrize(
    "groups, window, causal",
    [(None, 1, False), (None, 4, True), (2, 4, False), (2, 50, True)],
)
def test_numbers_and_gradients_are_those_of_keras(groups, window, causal):
    expected, layer = pair(groups, window, causal)
    inputs = [normal((2, LENGTH, WIDTH), seed) for seed in (1, 2)]
    call = {}
    if window > 1:  # every query sees some key
        call["key_mask"] = np.ones((2, LENGTH), bool)
        call["key_mask"][0, 1::3] = False
    wanted = results(expected, inputs, use_causal_mask=causal, **call)
    got = results(layer, inputs, **call)
    assert list(got) == list(wanted)
    for name, right in wanted.items():
        error = np.linalg.norm(got[name] - right)
        assert error < 1e-5 * max(np.linalg.norm(right), 1), name
    for name in ("output", "scores", "d input 0", "value/kernel"):
        if name != "d input 0" or window > 1:  # of one key queries change nothing
            assert np.linalg.norm(wanted[name]) > 0.5
