"""LSH attention within buckets against its definition, set by set."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops, zoo
from keras_performer.ops import blocks
from tests.ops import lsh_reference
from tests.ops.cases import (
    assert_equals,
    normal,
    value_and_gradients,
)

BATCH, HEADS, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7


def inputs(length, rounds=3, half=2, seed=0, dtype="float64"):
    """Returns query, value and buckets."""
    shape = BATCH, length, HEADS
    query = normal((*shape, HEAD_DIM), (seed, 1), 2.0, dtype)
    value = normal((*shape, VALUE_DIM), (seed, 2), dtype=dtype)
    rotations = normal((rounds, HEADS, HEAD_DIM, half), (seed, 3), dtype=dtype)
    return query, value, zoo.lsh_buckets(query, rotations)


def dense(sees):
    """Returns attention by the matrix of visible tokens, with autodiff."""

    def attention(query, value):
        key = query / tf.norm(query, axis=-1, keepdims=True)
        logits = tf.einsum("btnh,bsnh->bnts", query, key) / HEAD_DIM**0.5
        weights = tf.where(sees, tf.exp(logits), 0)
        weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, -1)[..., None])
        return tf.einsum("bnts,bsnv->btnv", weights, value)

    return attention


def some(length, share, seed):
    return np.random.default_rng(seed).random((BATCH, length)) < share


def test_buckets_are_the_largest_of_both_signs():
    x, rotations = normal((2, 40, 3, 5), 1), normal((4, 3, 5, 6), 2)
    buckets = zoo.lsh_buckets(x, rotations)
    np.testing.assert_array_equal(buckets, lsh_reference.buckets(x, rotations))
    assert len(np.unique(buckets)) == 12
    np.testing.assert_array_equal(zoo.lsh_buckets(1e4 * x, rotations), buckets)


@pytest.mark.parametrize(
    "length, window, masked, causal, weights",
    [
        (1, 4, False, True, None),
        (2, 2, False, False, None),
        (13, 3, True, False, None),
        (13, 3, False, True, None),
        (83, 100, True, True, None),
        (83, 9, False, False, None),
        (17, 2**30, False, False, None),
        (300, 70, False, True, 2**15),  # in several blocks
    ],
)
def test_it_is_the_definition(length, window, masked, causal, weights, monkeypatch):
    if weights:
        small = blocks.ON_CPU._replace(weights=weights)
        monkeypatch.setattr(blocks, "ON_CPU", small)
    query, value, buckets = inputs(length)
    seen, starts = None, None
    options = dict(causal=causal)
    if masked:
        seen, starts = some(length, 0.7, 3), some(length, 0.1, 4)
        options |= dict(seen=seen, segments=starts.cumsum(1))
        query, value = (
            tf.where(seen[..., None, None], x, 100.0) for x in (query, value)
        )
    visible = ops.Visibility(seen, causal, starts=starts)
    sees = lsh_reference.sees(buckets.numpy(), window, **options)

    def attention(query, value):
        return zoo.lsh_attention(query, value, buckets, window, visible)

    assert_equals(attention, dense(sees), [query, value], 1e-12)
    one_hot = tf.eye(length, dtype=value.dtype)[:, tf.newaxis]
    one_hot = tf.broadcast_to(one_hot, (*query.shape[:3], length))
    scores = tf.transpose(attention(query, one_hot), (0, 2, 1, 3))
    np.testing.assert_allclose(scores, lsh_reference.weights(query, sees), atol=1e-12)


def test_large_queries_and_queries_of_zero_are_finite():
    query, value, buckets = inputs(20, dtype="float32")
    for scale in (0.0, 1e4):
        results = value_and_gradients(
            lambda q, v: zoo.lsh_attention(q, v, buckets, 5), [scale * query, value]
        )
        assert all(np.isfinite(x).all() for x in results)


def test_what_is_no_bucket_for_each_token_raises():
    query, value, buckets = inputs(6)
    for message, given in (
        ("as lsh_buckets makes them", (buckets[..., 0], 3)),
        (r"Received: buckets of shape \(2, 5, 3, 3\)", (buckets[:, :5], 3)),
        ("sliding_window must be a positive int", (buckets, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            zoo.lsh_attention(query, value, *given)
