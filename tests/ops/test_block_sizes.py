"""Blocks as large as a GPU wants them, on a CPU, against the slow twins."""

import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks, reference
from tests.ops.cases import assert_equals, normal, qkv, softmax_kernel


def on(monkeypatch, *kinds):
    def found(kind):
        return [kind] if kind in kinds else []

    monkeypatch.setattr(tf.config, "list_logical_devices", found)


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_those_of_the_whole_matrix(causal, monkeypatch):
    """In blocks so small that the sequence has several, the last of them padded."""
    on(monkeypatch, "GPU")
    small = dict(min_tokens=128, max_tokens=128, chunk=50, weights=2**16)
    monkeypatch.setattr(blocks, "ON_GPU", blocks.ON_GPU._replace(**small))
    kernel, inputs = softmax_kernel(6), qkv(1, 300, 300, 1)

    def ours(*inputs):
        if causal:
            return ops.causal_attention(*inputs, kernel)[0]
        return ops.bidirectional_attention(*inputs, kernel)

    def matrix(*inputs):
        return reference.attention(*inputs, kernel, causal=causal)

    assert_equals(ours, matrix, inputs)
    visible = ops.Visibility(causal=causal)
    assert_equals(
        lambda *inputs: ops.local_attention(*inputs, 65, visible)[0],
        lambda *inputs: reference.local_attention(*inputs, 65, causal=causal),
        inputs,
    )


@pytest.mark.parametrize(
    "device, known, unknown, chunk",
    [("GPU", 512, 1024, 256), ("TPU", 128, None, 128), ("CPU", 128, 64, 64)],
)
def test_a_gpu_takes_larger_blocks(device, known, unknown, chunk, monkeypatch):
    """Sixteen sequences, 8 heads, 256 features; and of a batch that is not known."""
    on(monkeypatch, device)
    assert blocks.tokens_per_block(normal((16, 1, 8, 1), 0), 256) == known
    unknown_batch = tf.TensorSpec((None, 1, 8, 1))
    assert unknown in (None, blocks.tokens_per_block(unknown_batch, 256))
    assert blocks.block_sizes().chunk == chunk
