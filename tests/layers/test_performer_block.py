"""PerformerBlock: its formula, any attention or none, states, masks, saving."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import AttentionLayer, ExactAttention, PerformerBlock
from tests.layers.inputs import normal

X = normal((2, 7, 5))
MASK = np.arange(7) < [[7], [4]]


def performer(**options):
    return PerformerAttention(2, 3, num_random_features=6, seed=1, **options)


def exact(**options):
    return ExactAttention(2, 3, seed=1, **options)


def with_random_weights(block, shape=X.shape):
    block.build(shape)
    for index, weight in enumerate(block.trainable_weights):
        weight.assign(normal(weight.shape, seed=index))
    return block


def normalized(x, layer):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + layer.epsilon)
    return scaled * layer.gamma.numpy() + layer.beta.numpy()


def feed_forward(x, block):
    hidden = normalized(x, block.feedforward_norm) @ block.expand.kernel.numpy()
    hidden += block.expand.bias.numpy()
    hidden *= scipy.special.ndtr(hidden)  # gelu
    return x + hidden @ block.contract.kernel.numpy() + block.contract.bias.numpy()


@pytest.mark.parametrize("make", [performer, exact])
def test_each_part_is_normalized_first_and_added(make):
    block = with_random_weights(PerformerBlock(make(), 11))
    x = X.astype("float64")
    attended = block.attention(normalized(x, block.attention_norm).astype("float32"))
    expected = feed_forward(x + attended.numpy(), block)
    np.testing.assert_allclose(block(X), expected, rtol=1e-4, atol=1e-4)


def test_without_attention_tokens_know_nothing_of_each_other():
    block = with_random_weights(PerformerBlock(None, 11))
    expected = feed_forward(X.astype("float64"), block)
    np.testing.assert_allclose(block(X), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(block(X[:, 3:4]), expected[:, 3:4], rtol=1e-4, atol=1e-4)
    assert len(block.weights) == 6  # a norm and two dense layers
    assert block.get_initial_state(2) == ()
    y, state = block(X, state=(), return_state=True)
    np.testing.assert_array_equal(y, block(X))
    assert state == ()


def test_a_sequence_in_pieces_is_the_whole():
    block = with_random_weights(PerformerBlock(performer(causal=True), 11))
    state, parts = block.get_initial_state(2), []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        part, state = block(X[:, start:end], state=state, return_state=True)
        parts.append(part)
    whole = block(X)
    scale = np.abs(whole).max()
    np.testing.assert_allclose(tf.concat(parts, 1), whole, atol=1e-5 * scale)
    assert state["position"].numpy().tolist() == [7, 7]


@pytest.mark.parametrize(
    "make, causal, dtype",
    [
        (performer, True, "float32"),
        (exact, False, "float32"),
        (performer, False, "mixed_bfloat16"),
    ],
)
def test_padding_equals_a_shorter_sequence(make, causal, dtype):
    """Also by an implicit mask, which a cast of the inputs does not lose."""
    attention = make(causal=causal, dtype=dtype)
    block = with_random_weights(PerformerBlock(attention, 11, dtype=dtype))
    implicit = keras.layers.Masking(dtype="float32")(X * MASK[..., np.newaxis])
    short = tf.cast(block(X[1:, :4]), "float32")
    tolerance = dict(rtol=1e-4, atol=1e-4) if dtype == "float32" else dict(atol=0.5)
    for padded in (block(X, mask=MASK), block(implicit)):
        padded = tf.cast(padded, "float32")
        np.testing.assert_allclose(padded[1:, :4], short, **tolerance)


def test_inputs_have_three_axes():
    with pytest.raises(
        ValueError, match=r"\(batch, length, features\). Received.*5, 6"
    ):
        PerformerBlock(None, 4)(tf.ones((3, 4, 5, 6)))


def test_exact_attention_says_that_it_has_no_state():
    block = PerformerBlock(exact(causal=True), 4)
    with pytest.raises(ValueError, match="ExactAttention has no state"):
        block.get_initial_state(1)
    with pytest.raises(ValueError, match="ExactAttention has no state"):
        block(X, return_state=True)


def test_an_attention_of_ones_own():
    @keras.saving.register_keras_serializable(package="tests")
    class FirstToken(AttentionLayer):
        """Every token sees the value of the first."""

        projections = ("value",)

        def attend(self, query, key, value, visible, state=None, training=None):
            return tf.repeat(value[:, :1], value.shape[1], axis=1), None

    block = with_random_weights(PerformerBlock(FirstToken(2, 3), 11))
    other = X.copy()
    other[:, 1:4] += 1
    np.testing.assert_allclose(block(other)[:, 4:], block(X)[:, 4:], atol=1e-5)
    other[:, 0] += normal((2, 5), seed=9)
    assert np.abs(block(other) - block(X))[:, 4:].max() > 1e-2
    again = PerformerBlock.from_config(block.get_config())
    again.build(X.shape)
    again.set_weights(block.get_weights())
    np.testing.assert_array_equal(again(X), block(X))


def test_attention_that_is_built_keeps_its_weights():
    x = normal((2, 5, 8))
    attention = PerformerAttention(2, 4, seed=0)
    attention(x)
    kernel = attention.query_dense.kernel.numpy()
    block = PerformerBlock(attention, 16)
    block(x)
    np.testing.assert_array_equal(block.attention.query_dense.kernel, kernel)
