"""PerformerBlock: its formula with attention, mixers and convolutions, and states."""

import itertools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import (
    ExactAttention,
    MixingLayer,
    PerformerBlock,
)
from keras_performer.layers.block import ShortConvolution
from keras_performer.zoo import FourierMixing, SpatialGatingUnit, TokenMixing
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, normalized

X = normal((2, 13, 5)).astype("float64")
MASK = np.array([[1] * 9 + [0] * 4, [0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]], bool)
# segments of one and two tokens, and an id that repeats later
IDS = np.array([[1] * 5 + [2] * 8, [3, 3, 4, 5, 5, 5, 3, 3, 3, 3, 3, 7, 7]])


@keras.saving.register_keras_serializable(package="tests")
class Fading(MixingLayer):
    """A user's mixer, which adds half of the mixture before to each token.

    Channels after the first `hidden_dim` become 0.
    """

    supports_causal = True

    def __init__(self, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim

    def mix(self, x, mask, training=None):
        steps = tf.range(tf.shape(x)[1])[:, tf.newaxis] - tf.range(tf.shape(x)[1])
        weights = tf.where(steps < 0, 0.0, 0.5 ** tf.cast(steps, tf.float32))
        x *= tf.cast(tf.range(x.shape[-1]) < self.hidden_dim, x.dtype)
        return tf.einsum("ts,bsd->btd", tf.cast(weights, x.dtype), x)


def performer(**options):
    return PerformerAttention(2, 3, num_random_features=6, seed=1, **options)


def gating(**options):
    return SpatialGatingUnit(13, 6, **options)


def block_with(attention, dtype="float64", **options):
    block = PerformerBlock(attention, 11, dtype=dtype, **options)
    block.build(X.shape)
    for index, weight in enumerate(block.trainable_weights):
        weight.assign(normal(weight.shape, seed=index))
    return block


def feed_forward(x, block):
    hidden = normalized(x, block.feedforward_norm) @ block.expand.kernel.numpy()
    hidden += block.expand.bias.numpy()
    hidden *= scipy.special.ndtr(hidden)  # gelu
    return x + hidden @ block.contract.kernel.numpy() + block.contract.bias.numpy()


def fading(block, x):
    """Computes the mixture of `Fading(3)` token by token."""
    mixed, x = [], x * [1, 1, 1, 0, 0]
    for token in np.moveaxis(x, 1, 0):
        mixed.append(token + (0.5 * mixed[-1] if mixed else 0.0))
    return np.stack(mixed, 1)


def attention_of(block, x):
    return block.attention(x).numpy()


@pytest.mark.parametrize(
    ("make", "mixture", "convolved"),
    [
        (performer, attention_of, True),
        (lambda **o: performer(causal=True, **o), attention_of, True),
        (lambda **o: ExactAttention(2, 3, **o), attention_of, False),
        (FourierMixing, attention_of, False),
        (lambda **o: gating(causal=True, **o), attention_of, True),
        (lambda **o: Fading(3, causal=True, **o), fading, False),
        (None, lambda block, x: 0.0, False),
        (None, lambda block, x: 0.0, True),
    ],
)
def test_each_part_is_normalized_first_and_added(make, mixture, convolved):
    """A convolution comes first, and is causal if the attention is."""
    attention = make and make(dtype="float64")
    block = block_with(attention, conv_kernel_size=3 if convolved else None)
    x, causal = X, attention is None or attention.causal
    if convolved:
        kernel = block.convolution.kernel.numpy()
        x = x + convolution(normalized(x, block.convolution_norm), kernel, causal)
    if make is not None:
        x = x + mixture(block, normalized(x, block.attention_norm))
    np.testing.assert_allclose(block(X), feed_forward(x, block), atol=1e-6, rtol=1e-6)


def test_without_attention_there_is_no_state():
    block = block_with(None)
    assert len(block.weights) == 6  # a norm and two dense layers
    assert block.get_initial_state(2) == ()
    y, state = block(X, state=(), return_state=True)
    np.testing.assert_array_equal(y, block(X))
    assert state == ()


def test_attention_that_is_built_keeps_its_weights():
    attention = performer()
    attention(X)
    kernel = attention.query_dense.kernel.numpy()
    block = PerformerBlock(attention, 16)
    block(X)
    np.testing.assert_array_equal(block.attention.query_dense.kernel, kernel)


def test_a_bidirectional_convolution_has_no_state():
    for attention in None, performer():
        block = PerformerBlock(attention, 4, conv_kernel_size=2, conv_padding="same")
        with pytest.raises(ValueError, match="Only a causal convolution has a state"):
            block(X, return_state=True)


# -- Mixers alone.


def test_what_a_mixer_cannot_do_raises():
    x, layer = X.astype("float32"), gating(causal=True)
    place = "SpatialGatingUnit mixes tokens by their position.*without "
    for each in (layer, PerformerBlock(gating(causal=True), 4)):
        for name in ("segment_ids", "positions"):
            given = {name: np.zeros((2, 13), "int32")}
            with pytest.raises(ValueError, match=place + name):
                each(x, **given)
        for call in (dict(return_state=True), dict(state={})):
            with pytest.raises(ValueError, match="SpatialGatingUnit has no state"):
                each(x, **call)
    # called with two tensors, like attention
    with pytest.raises(
        ValueError, match="one tensor.*a second tensor of shape .2, 13,"
    ):
        layer(x, 0.5 * x)
    with pytest.raises(NotImplementedError, match="MixingLayer must define `mix`"):
        MixingLayer()(x)
    with pytest.raises(ValueError, match="FourierMixing cannot hide later tokens"):
        FourierMixing(causal=True)


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
