"""LSH attention: buckets from their definition, extreme queries, and errors.

`tests/layers/test_definitions.py` tests the numbers of attention.
"""

import numpy as np
import pytest

from keras_performer import zoo
from tests.layers import zoo_twins

from .cases import HEAD_DIM, normal, qkv, value_and_gradients

ROTATIONS = normal((3, 3, HEAD_DIM, 2), 3, dtype="float32")


def test_buckets_are_the_largest_of_both_signs():
    x, rotations = normal((2, 40, 3, 5), 1), normal((4, 3, 5, 6), 2)
    buckets = zoo.lsh_buckets(x, rotations)
    np.testing.assert_array_equal(buckets, zoo_twins.buckets(x, rotations))
    assert len(np.unique(buckets)) == 12
    np.testing.assert_array_equal(zoo.lsh_buckets(1e4 * x, rotations), buckets)


def test_large_queries_and_queries_of_zero_are_finite():
    query, _, value = qkv(2, 20, 20, 3, std=2.0, dtype="float32")
    buckets = zoo.lsh_buckets(query, ROTATIONS)
    for scale in (0.0, 1e4):
        results = value_and_gradients(
            lambda q, v: zoo.lsh_attention(q, v, buckets, 5), [scale * query, value]
        )
        assert all(np.isfinite(x).all() for x in results)


def test_what_is_no_bucket_for_each_token_raises():
    query, _, value = qkv(2, 6, 6, 3, dtype="float32")
    buckets = zoo.lsh_buckets(query, ROTATIONS)
    for message, given in (
        ("as lsh_buckets makes them", (buckets[..., 0], 3)),
        (r"Received: buckets of shape \(2, 5, 3, 3\)", (buckets[:, :5], 3)),
        ("sliding_window must be a positive int", (buckets, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            zoo.lsh_attention(query, value, *given)
