"""Nothing later reaches an output, whatever size it has."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import KERNELS, normal, qkv

LENGTH, CHANGED, CHUNK = 96, 50, 8
# A stabilizer, and the choice between two forms, is shared by a block.
BLOCK = 4 * CHUNK


def outputs(name, query, key, value, mask=None):
    attend = ops.causal_attention
    return attend(query, key, value, KERNELS[name](), mask, chunk_size=CHUNK)[0]


def scaled(x, position, scale):
    scales = np.where(np.arange(x.shape[1]) == position, scale, 1.0)
    return x * tf.constant(scales[None, :, None, None], x.dtype)


def assert_past_is_unchanged(before, after, block=CHUNK):
    boundary = CHANGED // block * block
    before, after = before.numpy(), after.numpy()
    np.testing.assert_array_equal(after[:, :boundary], before[:, :boundary])
    np.testing.assert_allclose(
        after[:, boundary:CHANGED], before[:, boundary:CHANGED], atol=1e-6
    )
    assert np.abs(after[:, CHANGED:] - before[:, CHANGED:]).max() > 1e-2


@pytest.mark.parametrize(
    "name, padded", [("softmax", False), ("favor+", True), ("relu", False)]
)
def test_a_future_key_and_value_eight_times_larger(name, padded):
    query, key, value = qkv(2, LENGTH, LENGTH, heads=2, groups=2, dtype="float32")
    visible = np.random.default_rng(0).random((2, LENGTH)) < 0.7
    visible[:, CHANGED] = True
    mask = tf.constant(visible) if padded else None
    large_key, large_value = scaled(key, CHANGED, 8), scaled(value, CHANGED, 8)
    before = outputs(name, query, key, value, mask)
    for changed in ((large_key, value), (key, large_value), (large_key, large_value)):
        assert_past_is_unchanged(before, outputs(name, query, *changed, mask))


@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_a_future_key_that_dwarfs_all_others(name):
    """All keys are far from the features; one comes close, by hundreds of nats."""
    query, key, value = qkv(2, LENGTH, LENGTH, heads=2, groups=2, dtype="float32")
    before = outputs(name, query, 12 * key, value)
    after = outputs(name, query, scaled(12 * key, CHANGED, 0.0), value)
    assert_past_is_unchanged(before, after, BLOCK)


@pytest.mark.parametrize("name", ["softmax", "log_weights"])
def test_new_tokens_after_every_position(name):
    """Every later token is replaced at once: at each place in a chunk."""
    inputs = qkv(2, LENGTH, LENGTH, heads=2, groups=2, dtype="float32")
    before = outputs(name, *inputs)
    for position in range(CHANGED, CHANGED + CHUNK):
        later = np.arange(LENGTH)[None, :, None, None] > position
        replaced = [
            tf.where(later, normal(x.shape, seed, std=2, dtype=x.dtype), x)
            for seed, x in enumerate(inputs)
        ]
        after = outputs(name, *replaced)
        same, changed = slice(position + 1), position + 1
        np.testing.assert_allclose(after[:, same], before[:, same], atol=1e-6)
        assert np.abs(after[:, changed] - before[:, changed]).max() > 1e-2


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_early_outputs_have_no_gradient_in_later_inputs(name):
    kernel = KERNELS[name]()
    inputs = qkv(2, LENGTH, LENGTH, heads=2, groups=2, dtype="float32")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, _ = ops.causal_attention(*inputs, kernel, chunk_size=CHUNK)
        loss = tf.reduce_sum(output[:, :CHANGED] ** 2)
    for gradient in tape.gradient(loss, inputs):
        np.testing.assert_array_equal(gradient[:, CHANGED:], 0)
        assert np.abs(gradient[:, :CHANGED]).min(axis=(0, 2, 3))[1:].max() > 0


def test_a_token_sees_itself():
    kernel = KERNELS["softmax"]()
    inputs = qkv(2, 1, 1, heads=2, groups=2, dtype="float32")
    output, _ = ops.causal_attention(*inputs, kernel)
    np.testing.assert_allclose(output, np.repeat(inputs[2], 2, axis=2), atol=1e-6)


def test_a_key_that_takes_the_rare_branch_changes_no_earlier_chunk():
    """The branch is chosen for a block; chunks before the key keep all their bits."""
    matrix = ops.orthogonal_gaussian_matrix(32, 16, (0, 1))
    kernel = ops.ExponentialKernel(matrix)
    query, key, value = (normal((1, 64, 1, 16), s, dtype="float32") for s in (1, 2, 3))
    same = np.repeat(8 * np.array(key[:, :1]), 64, axis=1)
    later = np.where(np.arange(64)[None, :, None, None] >= 50, key, same)
    before, after = (
        ops.causal_attention(query, key, value, kernel, chunk_size=16)[0].numpy()
        for key in (same, later)
    )
    np.testing.assert_array_equal(before[:, :48], after[:, :48])
    np.testing.assert_allclose(before[:, 48:50], after[:, 48:50], atol=1e-5)
    # the branch was taken: some key of the last chunk is far above the first
    a = np.array(later[0, :, 0]) / 2
    log_features = a @ matrix.numpy().T - (a**2).sum(-1, keepdims=True) / 2
    assert (log_features[50:] - log_features[0]).max() > kernel.max_rise
