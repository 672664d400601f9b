"""The bias of ALiBi is that of the paper."""

import numpy as np
import tensorflow as tf

from benchmarks.learning.alibi import AlibiAttention
from keras_performer.ops import Visibility


def test_logits_fall_with_the_distance_by_the_slopes_of_the_paper():
    random = np.random.default_rng(0)
    query, key, value = (random.normal(size=(2, 7, 8, 4)) for _ in range(3))
    layer = AlibiAttention(num_heads=8, key_dim=4, causal=True)
    inputs = [tf.constant(x, tf.float32) for x in (query, key, value)]
    found, _ = layer.attend(*inputs, Visibility(causal=True))
    distance = np.arange(7)[:, None] - np.arange(7)
    # of 8 heads: 1/2, 1/4, ... 1/256
    slopes = 0.5 ** np.arange(1, 9)
    logits = np.einsum("btnh,bsnh->bnts", query, key) / 2
    logits -= slopes[:, None, None] * distance
    weights = np.exp(logits) * (distance >= 0)
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bnts,bsnv->btnv", weights, value)
    np.testing.assert_allclose(found, expected, atol=1e-5)
