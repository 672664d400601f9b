"""Attention to both sides of packed sequences is that to each segment alone."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import (
    KERNELS,
    assert_all_close,
    favor_plus_kernel,
    float64,
    qkv,
    relative_error,
    value_and_gradients,
)
from .segment_cases import apart, ids, starts, with_large_keys

# Chunks are of 64 tokens: a chunk of many segments, and segments longer than one.
LENGTH, FIRSTS = 140, ((0, 1, 9, 10, 64, 139), (0, 70, 75, 76))


def packed(kernel, mask=None, **options):
    visible = ops.Visibility(mask, starts=starts(FIRSTS, LENGTH))

    def attend(query, key, value):
        return ops.bidirectional_attention(
            query, key, value, kernel, visible, **options
        )

    return attend


def alone(kernel, mask=None):
    def attend(query, key, value, mask):
        return ops.bidirectional_attention(query, key, value, kernel, mask)

    attend = apart(attend, FIRSTS)
    return lambda query, key, value: attend(query, key, value, mask)


def signed_kernel():
    """Sums of weights of either sign."""
    return ops.ActivationKernel(ops.gaussian_matrix(3, 5, (0, 5)), tf.nn.tanh)


ALL = {**KERNELS, "signed": signed_kernel}


@pytest.mark.parametrize("name", ["softmax", "favor+", "relu", "taylor", "signed"])
def test_outputs_and_gradients(name):
    kernel, inputs = ALL[name](), qkv(2, LENGTH, LENGTH, heads=2)
    found = value_and_gradients(packed(kernel), inputs)
    expected = value_and_gradients(alone(kernel), inputs)
    # sums of the signed kernel cancel: 1 / sum has been up to 1e4
    assert_all_close(found, expected, 1e-7 if name == "signed" else 1e-10)


def test_sums_of_the_signed_kernel_are_negative_too():
    query, key, _ = qkv(2, LENGTH, LENGTH, heads=2)
    features = [
        tf.tanh(tf.einsum("btnh,mh->btnm", x, tf.cast(matrix, x.dtype)))
        for matrix in [signed_kernel().projection_matrix]
        for x in (query, key)
    ]
    sums = tf.einsum("btnm,bsnm->btn", *features)
    assert 0.2 < np.mean(sums < 0) < 0.8


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_masks_and_grouped_heads_in_float32(name):
    kernel = KERNELS[name]()
    inputs = qkv(2, LENGTH, LENGTH, heads=2, groups=3, dtype="float32")
    mask = np.random.default_rng(0).random((2, LENGTH)) < 0.6
    mask[0, 10:64] = False  # a segment without keys
    found = value_and_gradients(packed(kernel, mask), inputs)
    expected = value_and_gradients(alone(kernel, tf.constant(mask)), float64(*inputs))
    assert_all_close(found, expected, 1e-5)
    np.testing.assert_array_equal(found[0][0, 10:64], 0)


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_keys_of_another_segment_change_nothing(size):
    inputs = qkv(2, LENGTH, LENGTH, heads=2, dtype="float32")
    large = np.zeros((2, LENGTH), bool)
    large[0, 10:64] = large[1, 75] = True
    attend = packed(KERNELS["softmax"]())
    scaled, plain, others = with_large_keys(attend, inputs, large, size)
    for found, expected in zip(scaled, plain):
        assert relative_error(found * others, expected * others) < 2e-6


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences(length):
    inputs = qkv(2, length, length, heads=2)
    segment_ids = ids(((0,), (0, 1)), 2)[:, :length]
    visible = ops.Visibility(starts=ops.segment_starts(segment_ids))
    kernel = favor_plus_kernel()
    found = ops.bidirectional_attention(*inputs, kernel, visible)
    whole = ops.bidirectional_attention(*inputs, kernel)
    assert_all_close([found[:1]], [whole[:1]], 1e-12)
    assert_all_close([found[1:]], [inputs[2][1:]], 1e-12)


@pytest.mark.slow
def test_compiled_alone():
    kernel, inputs = KERNELS["softmax"](), qkv(2, LENGTH, LENGTH, 2, dtype="float32")
    found = value_and_gradients(packed(kernel, jit_compile=True), inputs)
    assert_all_close(found, value_and_gradients(packed(kernel), inputs), 5e-6)
