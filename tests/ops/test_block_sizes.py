"""Blocks as large as a GPU wants them, on a CPU, against the slow twins."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks, reference
from tests.ops.cases import normal, qkv, softmax_kernel, value_and_gradients

LENGTH = 300


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])


@pytest.fixture
def several(monkeypatch):
    """Blocks so small that the sequence has several, the last of them padded."""
    small = dict(min_tokens=128, max_tokens=128, chunk=50, weights=2**16)
    monkeypatch.setattr(blocks, "ON_GPU", blocks.ON_GPU._replace(**small))


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_those_of_the_whole_matrix(causal, several):
    kernel, inputs = softmax_kernel(6), qkv(1, LENGTH, LENGTH, 1)

    def ours(*inputs):
        if causal:
            return ops.causal_attention(*inputs, kernel)[0]
        return ops.bidirectional_attention(*inputs, kernel)

    def matrix(*inputs):
        return reference.attention(*inputs, kernel, causal=causal)

    found, right = (value_and_gradients(f, inputs) for f in (ours, matrix))
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(right)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_near_keys_are_those_of_a_band(causal, several):
    visible = ops.Visibility(causal=causal)
    inputs = qkv(2, LENGTH, LENGTH, 2)
    found = ops.local_attention(*inputs, 65, visible)[0]
    right = ops.exact_attention(*inputs, visible._replace(sliding_window=65))
    np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-11)


def test_a_gpu_takes_larger_blocks(monkeypatch):
    """Sixteen sequences, 8 heads, 256 features; and of a batch that is not known."""
    x = normal((16, 1, 8, 1), 0)
    unknown = tf.TensorSpec((None, 1, 8, 1))
    assert blocks.tokens_per_block(x, 256) == 512
    assert blocks.tokens_per_block(unknown, 256) == 1024
    assert blocks.block_sizes().chunk == 256
    tpus = lambda kind: ["TPU"] if kind == "TPU" else []  # noqa: E731
    monkeypatch.setattr(tf.config, "list_logical_devices", tpus)
    assert blocks.tokens_per_block(x, 256) == 128
    assert blocks.block_sizes().chunk == 128
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    assert blocks.tokens_per_block(x, 256) == 128
    assert blocks.tokens_per_block(unknown, 256) == 64
    assert blocks.block_sizes().chunk == 64
