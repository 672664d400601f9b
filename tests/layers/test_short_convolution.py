"""PerformerBlock(conv_kernel_size=): a convolution before attention, by its formula."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock
from keras_performer.layers.block import ShortConvolution
from tests.layers.inputs import normal
from tests.layers.test_performer_block import normalized, with_random_weights

X = normal((2, 13, 5)).astype("float64")
MASK = np.array([[1] * 9 + [0] * 4, [0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]], bool)
# runs of one and two tokens, and an id that comes back
IDS = np.array([[1] * 5 + [2] * 8, [3, 3, 4, 5, 5, 5, 3, 3, 3, 3, 3, 7, 7]])


def reference(x, kernel, causal, mask=None, ids=None):
    """Sums over the tokens that each token sees, one after another."""
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


def convolution(size, causal, dtype="float64"):
    layer = ShortConvolution(size, causal, dtype=dtype)
    layer.build(X.shape)
    layer.kernel.assign(normal(layer.kernel.shape, seed=4))
    return layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
def test_it_is_the_formula(size, causal):
    layer = convolution(size, causal)
    for mask, ids in ((None, None), (MASK, None), (None, IDS), (MASK, IDS)):
        expected = reference(X, layer.kernel.numpy(), causal, mask, ids)
        found = layer(X, mask=mask, segment_ids=ids)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_kernel_is_uniform_in_one_over_the_root_of_its_size():
    layer = ShortConvolution(4, causal=True)
    layer.build((None, None, 2000))
    kernel = layer.kernel.numpy()
    assert np.abs(kernel).max() <= 0.5
    # the variance of a uniform number, of 8,000 to 4.5 standard errors
    assert abs(kernel.var() - 1 / 12) < 4.5 * (1 / 180 / kernel.size) ** 0.5


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_the_formula(causal):
    """Unit vectors give its matrix: it is linear in the inputs and in the kernel."""
    layer, given = convolution(3, causal), dict(mask=MASK, ids=IDS)
    kernel, dy = layer.kernel.numpy(), normal(X.shape, seed=8).astype("float64")
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, mask=MASK, segment_ids=IDS)
    dx, dkernel = tape.gradient(y, [x, layer.kernel], dy)
    for found, of_unit in (
        (dx, lambda unit: reference(unit, kernel, causal, **given)),
        (dkernel, lambda unit: reference(X, unit, causal, **given)),
    ):
        units = np.eye(found.numpy().size).reshape(-1, *found.shape)
        expected = [np.sum(dy * of_unit(unit)) for unit in units]
        np.testing.assert_allclose(np.ravel(found), expected, atol=1e-12)


def test_half_precision_sums_the_gradient_of_the_kernel_in_float32():
    layer = convolution(1, causal=True, dtype="mixed_bfloat16")
    with tf.GradientTape() as tape:
        y = layer(tf.ones((1, 4097, 5), "bfloat16"))
    assert y.dtype == "bfloat16"
    (gradient,) = tape.gradient(y, layer.trainable_variables)
    np.testing.assert_array_equal(gradient, np.full((1, 5), 4097))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 5, 11])
def test_a_sequence_in_pieces_is_the_whole(cut, packed):
    """Also pieces shorter than the kernel, and cuts inside and between segments."""
    layer, ids = convolution(4, causal=True), IDS if packed else None
    state, parts = layer.get_initial_state(2, packed), []
    for piece in (slice(0, cut), slice(cut, cut + 1), slice(cut + 1, 13)):
        part, state = layer(
            X[:, piece],
            mask=MASK[:, piece],
            segment_ids=None if ids is None else ids[:, piece],
            state=state,
            return_state=True,
        )
        parts.append(part)
    expected = layer(X, mask=MASK, segment_ids=ids)
    np.testing.assert_allclose(tf.concat(parts, 1), expected, atol=1e-12)
    assert state["inputs"].shape == (2, 3, 5)
    assert set(state) == ({"inputs", "segment"} if packed else {"inputs"})


def performer(**options):
    return PerformerAttention(2, 3, num_random_features=6, seed=1, **options)


def block_with(attention, dtype="float64", **options):
    options = {"conv_kernel_size": 3, **options}
    return with_random_weights(PerformerBlock(attention, 11, dtype=dtype, **options))


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_adds_it_before_attention(causal):
    block = block_with(performer(causal=causal, dtype="float64"))
    assert block.conv_padding == ("causal" if causal else "same")
    kernel = block.convolution.kernel.numpy()
    x = X + reference(normalized(X, block.convolution_norm), kernel, causal)
    attended = block.attention(normalized(x, block.attention_norm))
    np.testing.assert_allclose(block(X), block.add(x, attended), atol=1e-6)


def test_without_attention_it_is_all_that_tokens_know_of_each_other():
    block = block_with(None)
    kernel = block.convolution.kernel.numpy()
    x = X + reference(normalized(X, block.convolution_norm), kernel, causal=True)
    np.testing.assert_allclose(block(X), block.feed_forward(x), atol=1e-12)
    y, state = block(X[:, :4], state=block.get_initial_state(2), return_state=True)
    assert state["attention"] == ()
    later, _ = block(X[:, 4:], state=state, return_state=True)
    both = block_with(None, conv_padding="same")
    around = X + reference(normalized(X, both.convolution_norm), kernel, causal=False)
    np.testing.assert_allclose(both(X), both.feed_forward(around), atol=1e-12)
    np.testing.assert_allclose(tf.concat([y, later], 1), block(X), atol=1e-12)


@pytest.mark.parametrize(
    "attention",
    [
        performer(causal=True, dtype="float64", exact_window=3),
        LocalAttention(2, 3, sliding_window=3, causal=True, dtype="float64"),
    ],
)
def test_a_packed_block_in_pieces_is_its_segments_one_by_one(attention):
    block = block_with(attention)
    state, parts = block.get_initial_state(2, packed=True), []
    for piece in (slice(0, 4), slice(4, 5), slice(5, 13)):
        given = dict(segment_ids=IDS[:, piece], state=state, return_state=True)
        part, state = block(X[:, piece], **given)
        parts.append(part)
    found = tf.concat(parts, 1)
    np.testing.assert_allclose(found, block(X, segment_ids=IDS), atol=1e-5)
    for row, ids in enumerate(IDS):
        ends = [0, *(np.flatnonzero(np.diff(ids)) + 1), 13]
        alone = [block(X[row : row + 1, a:b]) for a, b in itertools.pairwise(ends)]
        np.testing.assert_allclose(found[row], tf.concat(alone, 1)[0], atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_equals_a_shorter_sequence(causal):
    block = block_with(ExactAttention(2, 3, causal=causal, dtype="float64"))
    mask = np.arange(13) < [[13], [6]]
    implicit = keras.layers.Masking(dtype="float64")(X * mask[..., np.newaxis])
    for padded in (block(X, mask=mask), block(implicit)):
        short = block(X[1:, :6])
        np.testing.assert_allclose(padded[1:, :6], short, atol=1e-6)
    left = np.arange(13) >= [[0], [7]]
    found = block(X, mask=left)[1:, 7:]
    np.testing.assert_allclose(found, block(X[1:, 7:]), atol=1e-6)


@pytest.mark.parametrize("attention", [None, performer()])
def test_no_state_with_a_convolution_to_both_sides(attention):
    block = PerformerBlock(attention, 4, conv_kernel_size=2, conv_padding="same")
    with pytest.raises(ValueError, match="A state belongs to a causal convolution"):
        block(X, return_state=True)


def test_a_state_of_another_block_is_refused():
    attention = performer(causal=True)
    without = PerformerBlock(attention, 11)
    without.build(X.shape)
    with pytest.raises(ValueError, match='"convolution" and "attention"'):
        block_with(performer(causal=True))(X, state=without.get_initial_state(2))
    packed = block_with(performer(causal=True), "float32")
    with pytest.raises(ValueError, match="packed=True"):
        packed(X, segment_ids=IDS, state=packed.get_initial_state(2))
    with pytest.raises(ValueError, match="segment_ids must be ints"):
        packed(X, segment_ids=IDS / 2)
