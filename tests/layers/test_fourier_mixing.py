"""`FourierMixing` beside NumPy's transform and beside its sum, term by term."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer.zoo import FourierMixing
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin

MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1, 1]], bool)


def term_by_term(weights, x, mask=None):
    """The formula of the docstring."""
    _, length, dim = x.shape
    x = x if mask is None else x * mask[..., None]
    tokens, channels = np.arange(length), np.arange(dim)
    turns = (
        tokens[:, None, None, None] * tokens[:, None] / length
        + channels[:, None, None] * channels / dim
    )
    y = np.einsum("tcsd,bsd->btc", np.cos(2 * np.pi * turns), x)
    return y if mask is None else y * mask[..., None]


@pytest.mark.parametrize("shape", [(2, 1, 5), (3, 8, 6), (1, 5, 1)])
def test_it_is_the_formula_and_so_are_its_gradients(shape):
    layer = FourierMixing(dtype="float64")
    layer.build(shape)
    x = normal(shape, dtype="float64")
    assert_is_twin(layer, term_by_term, [x])
    np.testing.assert_allclose(layer(x), np.fft.fft2(x).real, atol=1e-12)


def test_masked_tokens_count_as_zeros():
    layer = FourierMixing(dtype="float64")
    layer.build((2, 7, 5))
    x = normal((2, 7, 5))
    assert_is_twin(layer, term_by_term, [x], mask=MASK)
    huge = np.where(MASK[..., None], x, 1e4)
    np.testing.assert_array_equal(layer(huge, mask=MASK), layer(x, mask=MASK))


def test_the_length_of_the_row_counts_with_its_padding():
    """The same tokens in a longer row give other numbers, as the docstring says."""
    layer, x = FourierMixing(), normal((1, 5, 4))
    padded = layer(np.pad(x, [(0, 0), (0, 3), (0, 0)]), mask=[[True] * 5 + [False] * 3])
    assert np.abs(padded[:, :5] - layer(x)).max() > 0.1
    # both have the sum of all in their first number
    np.testing.assert_allclose(padded[0, 0, 0], x.sum(), rtol=1e-5)


def test_ortho_keeps_the_size_and_twice_is_the_row_turned_round():
    layer, x = FourierMixing("ortho", dtype="float64"), normal((2, 64, 48))
    x = x.astype("float64")
    y = layer(x).numpy()
    np.testing.assert_allclose(y, np.fft.fft2(x, norm="ortho").real, atol=1e-12)
    # a real part has half of the numbers that a transform has
    np.testing.assert_allclose(np.mean(y**2), 0.5, rtol=0.1)
    turned = np.roll(x[:, ::-1, ::-1], 1, (1, 2))
    np.testing.assert_allclose(layer(y), (x + turned) / 2, atol=1e-12)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    """A sum goes up to 34,816 on the way, which has 11 bits too many, and down to 3."""
    x = np.ones((1, 4096, 17), "float32")
    x[:, 2048:] = -1.0
    x[0, 0, 0] = 4.0
    y = FourierMixing(dtype=dtype)(x)
    assert y.dtype == dtype.split("_")[1]
    expected = np.fft.fft2(x).real
    assert expected[0, 0, 0] == 3.0
    np.testing.assert_allclose(tf.cast(y[0, 0, 0], "float32"), 3.0)


def test_it_cannot_hide_later_tokens():
    assert not FourierMixing.supports_causal
    with pytest.raises(ValueError, match="FourierMixing cannot hide later tokens"):
        FourierMixing(causal=True)


@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_a_batch_of_nothing(norm):
    assert FourierMixing(norm)(tf.ones((0, 5, 8))).shape == (0, 5, 8)
