"""The exact window to both sides in each of its forms, against the whole matrix."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from tests.ops.cases import normal, qkv, softmax_kernel
from tests.ops.test_windowed import (
    assert_all_close,
    mask,
    matrix,
    ours,
    with_gradients,
)

# How far far weights may be below the largest product of features; with the second, all
# are lost in one pass.
FORMS = {"in chunks": 60.0, "two passes": -np.inf}


def use_blocks(monkeypatch, tokens, features=2**30):
    sizes = dict(min_tokens=tokens, max_tokens=tokens, features=features)
    monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(**sizes))


# Of 67 tokens: the window, tokens of a chunk and of a block, whether keys are masked.
# Windows within a chunk, of a whole one, of more than a block; one block, and several.
# `test_trunk.py` has the blocks that are used, and inputs of every size.
@pytest.mark.parametrize(
    "form, window, chunk, tokens, masked",
    [
        ("in chunks", 1, 4, 8, True),
        ("in chunks", 8, 8, 32, False),
        ("in chunks", 20, 6, 6, True),
        ("in chunks", 31, 16, 64, True),
        ("two passes", 5, 8, 32, True),
    ],
)
def test_numbers_are_those_of_the_matrix(
    form, window, chunk, tokens, masked, monkeypatch
):
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", FORMS[form])
    use_blocks(monkeypatch, tokens)
    inputs = [*qkv(3, 67, 67, 2, groups=2), normal((4,), 9)]
    key_mask, weights = mask(67) if masked else None, normal((3, 67, 4, 7), 11)
    given = softmax_kernel(8), window, key_mask
    found = with_gradients(ours(*given, False, chunk), inputs, weights)
    assert_all_close(found, with_gradients(matrix(*given), inputs, weights))


@pytest.mark.parametrize("batch_at_once", [1, 3])
def test_numbers_do_not_depend_on_how_many_examples_are_computed_at_once(
    batch_at_once, monkeypatch
):
    kernel, inputs = softmax_kernel(), [*qkv(6, 40, 40, 2), normal((2,), 9)]
    features = batch_at_once * 40 * 2 * kernel.num_features(inputs[0].shape[3])
    use_blocks(monkeypatch, 64, features)
    key_mask, weights = tf.tile(mask(40), (2, 1)), normal((6, 40, 2, 7), 11)
    given = kernel, 3, key_mask
    found = with_gradients(ours(*given, False, 8), inputs, weights)
    assert_all_close(found, with_gradients(matrix(*given), inputs, weights))


def far_keys_of_tiny_features():
    """Far keys so large that their features are e^-60 of a near one's, and a gain."""
    query, key, value = qkv(1, 40, 40, 1)
    far = 24 * key / tf.norm(key, axis=-1, keepdims=True)
    key = tf.where(np.arange(40)[:, None, None] == 20, 0 * key, far)
    return [query, key, value, tf.constant([120.0], query.dtype)]


@pytest.mark.slow
def test_an_unknown_batch_and_length(monkeypatch):
    """Each form, as the second inputs lose far weights."""
    use_blocks(monkeypatch, 16)
    kernel, weights = softmax_kernel(), normal((3, 40, 1, 7), 11)

    @tf.function(
        input_signature=[
            *(tf.TensorSpec((None, None, 1, dim), tf.float64) for dim in (5, 5, 7)),
            tf.TensorSpec((1,), tf.float64),
            tf.TensorSpec((None, None), tf.bool),
            tf.TensorSpec((None, None, 1, 7), tf.float64),
        ]
    )
    def attend(query, key, value, gain, key_mask, weights):
        inputs = [query, key, value, gain]
        return with_gradients(ours(kernel, 4, key_mask, False, 4), inputs, weights)

    ordinary = [*qkv(3, 40, 40, 1), normal((1,), 9)]
    hard = far_keys_of_tiny_features()
    for inputs, seen in (ordinary, mask(40)), (hard, tf.ones((1, 40), tf.bool)):
        weights_ = weights[: len(seen)]
        found = attend(*inputs, seen, weights_)
        right = with_gradients(matrix(kernel, 4, seen), inputs, weights_)
        assert_all_close(found, right, 1e-10 if inputs is ordinary else 1e-7)


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_far_weights_below_float32s_range_of_near_features_count(
    jit_compile, monkeypatch
):
    use_blocks(monkeypatch, 16)
    inputs = query, key, value, _ = far_keys_of_tiny_features()
    kernel, weights = softmax_kernel(), normal((1, 40, 1, 7), 11)
    right = with_gradients(matrix(kernel, 3), inputs, weights)
    # without them these rows would be the mean of a few near values
    near_alone = ops.exact_attention(
        query, key, value, ops.Visibility(sliding_window=3)
    )
    assert tf.reduce_max(tf.abs(right[0] - near_alone)[:, 19:22]) > 0.5
    inputs = [tf.cast(x, tf.float32) for x in inputs]
    attend = ours(kernel, 3, None, False, 4, jit_compile=jit_compile)
    found = with_gradients(attend, inputs, tf.cast(weights, tf.float32))
    for x, y in zip(found, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4 * np.abs(y).max())


@pytest.mark.parametrize("length", [20, 200])
def test_no_examples(length):
    inputs = [*qkv(0, length, length, 2, groups=2), normal((4,), 9)]
    attend, weights = ours(softmax_kernel(), 4), tf.zeros((0, length, 4, 7))
    found = with_gradients(attend, inputs, tf.cast(weights, inputs[0].dtype))
    assert [x.shape for x in found] == [(0, length, 4, 7), *(x.shape for x in inputs)]
    assert not np.any(found[-1])
