"""Rotary positions against complex numbers in NumPy and float64."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

random = np.random.default_rng(0)


def turned(x, positions):
    """Multiplies pairs of a head, as complex numbers, by e^(i p f); one axis."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-np.arange(half) / half)
    pairs = x[..., :half] + 1j * x[..., half:]
    angles = np.asarray(positions, "float64")[..., None] * frequencies
    pairs = pairs * np.exp(1j * angles)[:, :, None]
    return np.concatenate([pairs.real, pairs.imag], -1)


# Positions whose digits of ten bits are all 0, all 1, or mixed.
FAR = [0, 1, 1023, 1024, 10**6, 10**6 + 1, 2**20 - 1, 2**24 + 1, 10**9 + 7, 2**31 - 1]


@pytest.mark.parametrize("size, sign", [(2, 1), (128, -1)])
def test_angles_are_right_at_any_position(size, sign):
    positions = sign * np.array([FAR])
    # the pair (1, 0) turns into the cosine and the sine of its angle
    x = np.zeros((1, len(FAR), 1, size), "float32")
    x[..., : size // 2] = 1
    cos, sin = np.split(ops.rotary_embedding(x, positions)[0, :, 0].numpy(), 2, -1)
    wanted = turned(x.astype("longdouble"), positions)[0, :, 0]
    wanted = np.arctan2(*np.split(wanted, 2, -1)[::-1])
    error = np.arctan2(sin.astype("float64"), cos) - wanted
    error = np.abs((error + np.pi) % (2 * np.pi) - np.pi)
    assert error.max() < 1e-6


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float64", 1e-9), ("float32", 1e-6), ("bfloat16", 8e-3), ("float16", 1e-3)],
)
def test_numbers_in_every_dtype(dtype, tolerance):
    x = tf.cast(random.standard_normal((2, 5, 3, 8)), dtype)
    positions = 10**6 + random.integers(0, 10**5, (2, 5))
    output = ops.rotary_embedding(x, positions)
    assert output.dtype == dtype
    expected = turned(tf.cast(x, "float64").numpy(), positions)
    # only the result is rounded: angles in half precision would be off by radians
    error = np.abs(tf.cast(output, "float64") - expected)
    assert (error <= tolerance * np.maximum(np.abs(expected), 1)).all()


def test_compiled_it_is_the_same():
    function = tf.function(
        ops.rotary_embedding,
        input_signature=[
            tf.TensorSpec((None, None, 2, 8)),
            tf.TensorSpec((None, None), tf.int32),
        ],
        jit_compile=True,
    )
    x = random.standard_normal((1, len(FAR), 2, 8)).astype("float32")
    np.testing.assert_allclose(function(x, [FAR]), turned(x, [FAR]), atol=2e-6)


def test_a_head_that_cannot_be_divided_raises():
    message = "divisible by 4, 2 for each axis.*Received: x of shape .*6"
    with pytest.raises(ValueError, match=message):
        ops.rotary_embedding(tf.ones((1, 3, 2, 6)), tf.zeros((1, 3, 2), tf.int32))
