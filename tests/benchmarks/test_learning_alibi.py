"""The bias of ALiBi is that of the paper, whatever the attention."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.learning.alibi import AlibiExact, AlibiLocal, AlibiPerformer
from keras_performer.ops import Visibility
from tests.layers.inputs import normal

DISTANCE = np.arange(7)[:, None] - np.arange(7)
# of 8 heads: 1/2, 1/4, ... 1/256
SLOPES = 0.5 ** np.arange(1, 9)


def attended(log_weights, value, window=7):
    """`(B, T, N, V)` from log-weights `(B, N, T, S)` without the bias."""
    weights = np.exp(log_weights - SLOPES[:, None, None] * DISTANCE)
    weights *= (DISTANCE >= 0) & (DISTANCE < window)
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnv->btnv", weights, value)


@pytest.mark.parametrize("window", [3, 7])
def test_logits_fall_with_the_distance_by_the_slopes_of_the_paper(window):
    query, key, value = (normal((2, 7, 8, 4), seed) for seed in range(3))
    layer = AlibiLocal(num_heads=8, key_dim=4, sliding_window=window, causal=True)
    if window == 7:
        layer = AlibiExact(num_heads=8, key_dim=4, causal=True)
    layer.build((2, 7, 5))
    inputs = map(tf.constant, (query, key, value))
    found, _ = layer.attend(*inputs, Visibility(causal=True))
    logits = np.einsum("btnh,bsnh->bnts", query, key) / 2
    np.testing.assert_allclose(found, attended(logits, value, window), atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_estimated_weights_fall_too(window):
    options = dict(num_random_features=6, exact_window=window, causal=True, seed=0)
    layer = AlibiPerformer(num_heads=8, key_dim=4, **options)
    layer.build((2, 7, 5))
    query, key, value = (normal((2, 7, 8, 4), seed) for seed in range(3))
    inputs = [tf.Variable(x) for x in (query, key, value)]
    with tf.GradientTape() as tape:
        found, _ = layer.attend(*inputs, Visibility(causal=True))
        loss = tf.reduce_sum(found * normal(found.shape, 3))
    gradients = tape.gradient(loss, inputs)

    def log_weights(query, key):
        x, y = query / 2**0.5, key / 2**0.5
        matrix = layer.projection_matrix.numpy()
        features = [
            np.exp(z @ matrix.T - np.sum(z**2, -1, keepdims=True) / 2) for z in (x, y)
        ]
        found = np.log(np.einsum("btnm,bsnm->bnts", *features) / len(matrix))
        if window is None:
            return found
        exact = np.einsum("btnh,bsnh->bnts", x, y)
        return np.where(DISTANCE < window, exact, found)

    def total(query, key, value):
        return np.sum(attended(log_weights(query, key), value) * normal(found.shape, 3))

    expected = attended(log_weights(query, key), value)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    given = [np.float64(x) for x in (query, key, value)]
    for index, gradient in enumerate(gradients):
        direction, ends = normal(query.shape, 9, dtype="float64"), []
        for step in (1e-5, -1e-5):
            moved = list(given)
            moved[index] = moved[index] + step * direction
            ends.append(total(*moved))
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-3)
