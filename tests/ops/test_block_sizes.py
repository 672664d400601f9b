"""Tokens of a block on each kind of device; outputs do not depend on them."""

import pytest
import tensorflow as tf

from keras_performer.ops import ExponentialKernel, blocks
from keras_performer.ops.linear.loops import Causal
from keras_performer.ops.linear.reach import Reach


@pytest.mark.parametrize(
    "device, known, unknown, chunk, tokens",
    [
        ("GPU", 1024, 1024, 128, 4096),
        ("TPU", 128, None, 128, 1024),
        ("CPU", 128, 64, 64, 512),
    ],
)
def test_a_gpu_takes_larger_blocks(device, known, unknown, chunk, tokens, monkeypatch):
    """Tests 16 sequences, 8 heads, 256 features; and an unknown batch size."""
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * (kind == device)
    )
    assert blocks.tokens_per_block(tf.TensorSpec((16, 1, 8, 1)), 256) == known
    unknown_batch = tf.TensorSpec((None, 1, 8, 1))
    assert unknown in (None, blocks.tokens_per_block(unknown_batch, 256))
    assert blocks.block_sizes().chunk == chunk
    query = tf.zeros((1, 10_000, 1, 8))
    kernel = ExponentialKernel(tf.zeros((256, 8)))
    loops = Causal(kernel, Reach(), None, (None, None), [query] * 3, None)
    assert loops.chunks == tokens // chunk and loops.blocks.tokens <= tokens
