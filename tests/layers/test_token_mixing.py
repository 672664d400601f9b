"""`TokenMixing` beside its formula in NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer.zoo import TokenMixing
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, randomize

MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1, 1]], bool)
# TensorFlow knows the root of two in its gelu to 8 digits only
TOLERANCE = 1e-7


def built(max_length=7, intermediate_dim=11, dtype="float64", dim=5):
    layer = TokenMixing(max_length, intermediate_dim, dtype=dtype)
    layer.build((None, None, dim))
    randomize(layer)
    return layer


def twin(weights, x, mask=None):
    """Channel by channel, W2 gelu(W1 x) over the first tokens."""
    x = x if mask is None else x * mask[..., None]
    length, y = x.shape[1], np.zeros_like(x)
    for row, channel in np.ndindex(x.shape[0], x.shape[2]):
        hidden = weights["expand_kernel"][:length].T @ x[row, :, channel]
        hidden += weights["expand_bias"]
        hidden *= scipy.special.ndtr(hidden)  # gelu
        mixed = weights["contract_kernel"].T @ hidden + weights["contract_bias"]
        y[row, :, channel] = mixed[:length]
    return y if mask is None else y * mask[..., None]


@pytest.mark.parametrize("length", [1, 5, 7])
def test_it_is_the_formula_and_so_are_its_gradients(length):
    assert_is_twin(built(), twin, [normal((2, length, 5))], TOLERANCE)


def test_masked_tokens_count_as_zeros():
    layer, x = built(), normal((2, 7, 5))
    assert_is_twin(layer, twin, [x], TOLERANCE, mask=MASK)
    huge = np.where(MASK[..., None], x, 1e4)
    np.testing.assert_array_equal(layer(huge, mask=MASK), layer(x, mask=MASK))


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    layer = TokenMixing(5000, 1, dtype=dtype)
    layer.build((None, None, 1))
    kernel = np.ones((5000, 1), "float32")
    kernel[2500:] = -1
    layer.set_weights([kernel, np.zeros(1), np.ones((1, 5000)), np.zeros(5000)])
    x = 30 * np.ones((1, 5000, 1), "float32")  # sums up to 75,000 on the way
    x[0, 0] = 33.0
    y = layer(x)
    assert y.dtype == dtype.split("_")[1]
    # gelu(3), rounded once
    np.testing.assert_allclose(tf.cast(y, "float32"), 2.996, rtol=5e-3)
