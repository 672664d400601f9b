"""PerformerBlock: its formula with attention, mixers and convolutions, and states."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, PerformerBlock
from keras_performer.layers.block import ShortConvolution
from keras_performer.zoo import FourierMixing, SpatialGatingUnit, TokenMixing
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, randomize

X = normal((2, 13, 5)).astype("float64")
MASK = np.array([[1] * 9 + [0] * 4, [0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]], bool)
# segments of one and two tokens, and an id that repeats later
IDS = np.array([[1] * 5 + [2] * 8, [3, 3, 4, 5, 5, 5, 3, 3, 3, 3, 3, 7, 7]])


def performer(**options):
    return PerformerAttention(2, 3, num_random_features=6, seed=1, **options)


@pytest.mark.parametrize(
    ("make", "convolved"),
    [
        (performer, True),
        (lambda **o: performer(causal=True, **o), True),
        (lambda **o: ExactAttention(2, 3, **o), False),
        (FourierMixing, False),
        (lambda **o: SpatialGatingUnit(13, 6, causal=True, **o), True),
        (None, False),
        (None, True),
    ],
)
def test_each_part_is_normalized_first_and_added(make, convolved):
    """A convolution comes first, and is causal if the attention is."""
    attention, x = make and make(dtype="float64"), X
    options = dict(conv_kernel_size=3 if convolved else None, dtype="float64")
    block = PerformerBlock(attention, 11, **options)
    block.build(X.shape)
    randomize(block, std=1.0)
    if convolved:
        assert block.convolution.causal == (attention is None or attention.causal)
        x = x + block.convolution(block.convolution_norm(x))
    if make is not None:
        x = x + block.attention(block.attention_norm(x))
    hidden = block.feedforward_norm(x) @ block.expand.kernel + block.expand.bias
    expected = x + block.contract(keras.activations.gelu(hidden, approximate=False))
    np.testing.assert_allclose(block(X), expected, atol=1e-6, rtol=1e-6)


def test_attention_that_is_built_keeps_its_weights():
    attention = performer()
    attention(X)
    kernel = attention.query_dense.kernel.numpy()
    block = PerformerBlock(attention, 16)
    block(X)
    np.testing.assert_array_equal(block.attention.query_dense.kernel, kernel)


@pytest.mark.parametrize("kind", [SpatialGatingUnit, TokenMixing])
def test_a_config_with_the_earlier_name_of_the_width(kind):
    config = kind(7, 6).get_config()
    config["hidden_dim"] = config.pop("intermediate_dim")
    assert kind.from_config(config).intermediate_dim == 6


# -- The short convolution alone.


def convolution(x, kernel, causal, mask=None, ids=None):
    """Computes the convolution by loops over visible tokens."""
    size, y = len(kernel), np.zeros_like(x)
    first = size - 1 if causal else (size - 1) // 2
    for row, i, k in itertools.product(range(len(x)), range(x.shape[1]), range(size)):
        j = i - first + k
        if not 0 <= j < x.shape[1] or (mask is not None and not mask[row, j]):
            continue
        between = slice(min(i, j), max(i, j) + 1)
        if ids is None or len(set(ids[row, between])) == 1:
            y[row, i] += kernel[k] * x[row, j]
    return y


def short_convolution(size, causal, dtype="float64"):
    layer = ShortConvolution(size, causal, dtype=dtype)
    layer.build(X.shape)
    layer.kernel.assign(normal(layer.kernel.shape, seed=4))
    return layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_a_convolution_is_its_formula_with_all_gradients(size, causal):
    def twin(weights, x, mask=None, segment_ids=None):
        return convolution(x, weights["kernel"], causal, mask, segment_ids)

    layer = short_convolution(size, causal)
    for call in {}, dict(mask=MASK), dict(mask=MASK, segment_ids=IDS):
        assert_is_twin(layer, twin, [X], **call)


def test_the_kernel_is_uniform_in_one_over_the_root_of_its_size():
    layer = ShortConvolution(4, causal=True)
    layer.build((None, None, 2000))
    kernel = layer.kernel.numpy()
    assert np.abs(kernel).max() <= 0.5
    # the variance of a uniform number: 8,000 numbers, within 4.5 standard errors
    assert abs(kernel.var() - 1 / 12) < 4.5 * (1 / 180 / kernel.size) ** 0.5


def test_half_precision_sums_the_gradient_of_the_kernel_in_float32():
    layer = short_convolution(1, causal=True, dtype="mixed_bfloat16")
    with tf.GradientTape() as tape:
        y = layer(tf.ones((1, 4097, 5), "bfloat16"))
    assert y.dtype == "bfloat16"
    (gradient,) = tape.gradient(y, layer.trainable_variables)
    np.testing.assert_array_equal(gradient, np.full((1, 5), 4097))
