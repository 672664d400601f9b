"""`LocalAttention` beside Keras' layer with a band for a mask."""

import keras
import numpy as np
import pytest

from keras_performer.layers import LocalAttention
from tests.layers.inputs import normal
from tests.layers.like_keras import copy_weights


def pair(sliding_window, width=8, **options):
    options.setdefault(
        "bias_initializer", keras.initializers.RandomNormal(stddev=0.5, seed=6)
    )
    expected = keras.layers.MultiHeadAttention(3, 4, **options)
    layer = LocalAttention(3, 4, sliding_window=sliding_window, **options)
    for each in expected, layer:
        each.build((2, None, width), (2, None, width))
    copy_weights(layer, expected)
    return expected, layer


def band(length, sliding_window):
    distance = np.arange(length)[:, None] - np.arange(length)
    return np.abs(distance) < sliding_window


@pytest.mark.parametrize(
    "length, window, causal",
    [
        *((2, 3, False), (9, 1, True), (9, 4, False), (9, 4, True)),
        *((9, 50, True), (150, 70, False), (150, 70, True)),
    ],
)
def test_it_is_keras_attention_with_a_band(length, window, causal):
    expected, layer = pair(window)
    x, seen = normal((2, length, 8), 1), np.ones((2, length), bool)
    seen[0, length // 2 :: 3] = False
    mask = band(length, window) & seen[:, None]
    call = dict(use_causal_mask=causal, return_attention_scores=True)
    rows = mask & (np.tri(length, dtype=bool) if causal else True)
    wanted, right = expected(x, x, attention_mask=mask, **call)
    got, scores = layer(x, key_mask=seen, **call)
    sees = rows.any(-1)
    np.testing.assert_allclose(got[sees], wanted[sees], atol=1e-5)
    if not sees.all():  # Keras gives such rows the mean of all values
        bias = layer.output_dense.bias
        np.testing.assert_allclose(got[~sees], np.tile(bias, (np.sum(~sees), 1)))
    both = [np.moveaxis(s, 1, -1)[sees] for s in (scores, right)]
    np.testing.assert_allclose(*both, atol=1e-5)
