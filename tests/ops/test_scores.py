"""The implied attention matrix against the reference."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference

from .cases import KERNELS, masks, qkv

CASES = [
    *((name, True, index % 2 > 0) for index, name in enumerate(KERNELS)),
    ("softmax", False, True),
    ("relu", False, False),
]


@pytest.mark.parametrize("name, masked, causal", CASES)
def test_scores_equal_the_matrix_of_the_reference(name, masked, causal):
    kernel = KERNELS[name]()
    queries = 13 if causal else 7
    query, key, value = qkv(batch=3, queries=queries, keys=13, heads=2, groups=3)
    mask = masks(13)["different"] if masked else None
    scores = ops.attention_scores(query, key, kernel, mask, causal)
    expected = reference.attention_matrix(query, key, kernel, mask, causal)
    assert scores.shape == (3, 6, queries, 13)
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-12)
    visible = (
        np.tri(queries, 13, dtype=bool) if causal else np.ones((queries, 13), bool)
    )
    visible = np.broadcast_to(visible, (3, 1, queries, 13))
    if masked:
        visible = visible & mask[:, None, None]
    np.testing.assert_array_equal(np.where(visible, 0, scores), 0)
    sees = np.broadcast_to(visible.any(axis=-1), (3, 6, queries))
    np.testing.assert_allclose(np.sum(scores, axis=-1), sees, atol=1e-9)
    if causal:
        output, _ = ops.causal_attention(query, key, value, kernel, mask)
    else:
        output = ops.bidirectional_attention(query, key, value, kernel, mask)
    product = np.einsum("bnts,bsnv->btnv", scores, np.repeat(value, 3, axis=2))
    np.testing.assert_allclose(output, product, rtol=1e-9, atol=1e-12)


def test_scores_have_the_dtype_of_the_query():
    query, key, _ = qkv(1, queries=5, keys=5, heads=1, dtype="float32")
    scores = ops.attention_scores(query, key, KERNELS["softmax"]())
    assert scores.dtype == "float32"
    np.testing.assert_allclose(np.sum(scores, axis=-1), 1, atol=1e-6)


def test_gradients_of_scores_at_unknown_length_are_those_at_known_length():
    kernel = KERNELS["softmax"]()
    query, key, _ = qkv(1, queries=5, keys=5, heads=1, dtype="float32")

    def gradients(query, key):
        with tf.GradientTape() as tape:
            tape.watch([query, key])
            scores = ops.attention_scores(query, key, kernel, causal=True)
            loss = tf.reduce_sum(scores**2)
        return tape.gradient(loss, [query, key])

    shape = (None, None, *query.shape[2:])
    graph = tf.function(gradients, input_signature=[tf.TensorSpec(shape)] * 2)
    for known, unknown in zip(gradients(query, key), graph(query, key)):
        assert np.abs(known).max() > 1e-4
        np.testing.assert_allclose(unknown, known, rtol=1e-4, atol=1e-7)
