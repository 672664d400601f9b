"""Mixers where attention stands: the base class, blocks, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import MixingLayer, PerformerAttention, PerformerBlock
from keras_performer.zoo import FourierMixing, SpatialGatingUnit, TokenMixing
from tests.layers.inputs import normal
from tests.layers.test_performer_block import (
    MASK,
    X,
    feed_forward,
    normalized,
    with_random_weights,
)


def fourier():
    return FourierMixing("ortho")


def tokens():
    return TokenMixing(9, 6)


def gating():
    return SpatialGatingUnit(9, 6)


def causal_gating():
    return SpatialGatingUnit(9, 6, causal=True)


EACH = pytest.mark.parametrize("make", [fourier, tokens, gating, causal_gating])


@pytest.mark.parametrize("make", [fourier, causal_gating])
def test_a_block_normalizes_first_and_adds(make):
    block = with_random_weights(PerformerBlock(make(), 11))
    x = X.astype("float64")
    mixed = block.attention(normalized(x, block.attention_norm).astype("float32"))
    expected = feed_forward(x + mixed.numpy(), block)
    np.testing.assert_allclose(block(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [fourier, tokens])
def test_a_block_hides_masked_tokens(make):
    block, mask = with_random_weights(PerformerBlock(make(), 11)), MASK[:, ::-1]
    huge = np.where(mask[..., np.newaxis], X, 1e4 * normal(X.shape, 5))
    seen, moved = (block(x, mask=mask).numpy()[mask] for x in (X, huge))
    np.testing.assert_array_equal(moved, seen)
    assert np.abs(block(huge).numpy()[mask] - seen).max() > 1e-2


def test_padding_to_the_right_equals_a_shorter_sequence():
    """Also by an implicit mask, which a cast of the inputs does not lose."""
    block = with_random_weights(PerformerBlock(gating(), 11))
    implicit = keras.layers.Masking(dtype="float32")(X * MASK[..., np.newaxis])
    short = block(X[1:, :4])
    for padded in (block(X, mask=MASK), block(implicit)):
        np.testing.assert_allclose(padded[1:, :4], short, rtol=1e-4, atol=1e-4)


@EACH
def test_an_implicit_mask_is_a_mask(make):
    layer = make()
    implicit = keras.layers.Masking(dtype="float32")(X * MASK[..., np.newaxis])
    found = layer(implicit)
    np.testing.assert_array_equal(found, layer(X, mask=MASK))
    np.testing.assert_array_equal(found._keras_mask, MASK)
    assert not found.numpy()[~MASK].any() and found.numpy()[MASK].all()


# Keras 3.10 says so of a model with one input that it has loaded
@pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")
@pytest.mark.parametrize("make", [fourier, causal_gating])
def test_a_block_trains_and_is_saved(make, tmp_path):
    inputs = keras.Input((None, 5))
    outputs = PerformerBlock(make(), 11, dropout=0.1, seed=3)(inputs)
    model = keras.Model(inputs, PerformerBlock(make(), 4)(outputs))
    before = model(X).numpy()
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    losses = [model.train_on_batch(X, 0 * X) for _ in range(3)]
    assert losses[-1] < losses[0] and np.abs(model(X) - before).max() > 1e-2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(X), model(X))
    mixer = loaded.layers[1].attention
    assert type(mixer) is type(make())
    names = "norm", "max_length", "intermediate_dim", "causal"
    for name in set(names) & set(make().get_config()):
        assert mixer.get_config()[name] == make().get_config()[name]


def test_a_convolution_is_causal_where_the_mixer_is():
    made = [PerformerBlock(m(), 4, conv_kernel_size=3) for m in (gating, causal_gating)]
    assert [block.conv_padding for block in made] == ["same", "causal"]


def test_segments_positions_and_states_are_refused():
    place = "SpatialGatingUnit mixes tokens by their position.*without "
    for each in (causal_gating(), PerformerBlock(causal_gating(), 4)):
        for name in ("segment_ids", "positions"):
            given = {name: np.zeros((2, 7), "int32")}
            for x in (X, keras.Input((7, 5))):
                with pytest.raises(ValueError, match=place + name):
                    each(x, **given)
        for call in (dict(return_state=True), dict(state={})):
            with pytest.raises(ValueError, match="SpatialGatingUnit has no state"):
                each(X, **call)
        with pytest.raises(ValueError, match="SpatialGatingUnit has no state"):
            each.get_initial_state(2)


def test_other_inputs_are_refused():
    layer = gating()
    for wrong in (tf.ones((2, 3)), tf.ones((2, 3, 4, 5))):
        with pytest.raises(ValueError, match="one tensor of shape .batch, length"):
            layer(wrong)
    with pytest.raises(ValueError, match="one tensor.*Received: inputs of.*list"):
        layer([tf.ones((2, 3, 4)), tf.ones((2, 3, 4))])
    with pytest.raises(ValueError, match="mask must have shape"):
        layer(X, mask=np.ones((2, 6), bool))
    with pytest.raises(ValueError, match="one tensor.*a second tensor of shape .2, 7,"):
        layer(X, 0.5 * np.ones((2, 7, 5)))  # as attention is called


@keras.saving.register_keras_serializable(package="tests")
class Fading(MixingLayer):
    """A stranger's mixer: a token and half of the mixture before it."""

    supports_causal = True

    def mix(self, x, mask, training=None):
        x = x if mask is None else x * tf.cast(mask, x.dtype)[..., tf.newaxis]
        steps = tf.range(tf.shape(x)[1])[:, tf.newaxis] - tf.range(tf.shape(x)[1])
        weights = tf.where(steps < 0, 0.0, 0.5 ** tf.cast(steps, tf.float32))
        mixed = tf.einsum("ts,bsd->btd", weights, tf.cast(x, "float32"))
        return tf.cast(mixed, x.dtype)


def test_a_mixer_of_ones_own():
    block = with_random_weights(PerformerBlock(Fading(causal=True), 11))
    normal_x, mixed = normalized(X.astype("float64"), block.attention_norm), []
    for token in np.moveaxis(normal_x, 1, 0):
        mixed.append(token + (0.5 * mixed[-1] if mixed else 0.0))
    expected = feed_forward(X + np.stack(mixed, 1), block)
    np.testing.assert_allclose(block(X), expected, rtol=1e-4, atol=1e-4)
    again = PerformerBlock.from_config(block.get_config())
    again.build(X.shape)
    again.set_weights(block.get_weights())
    np.testing.assert_array_equal(again(X), block(X))
    assert again.attention.causal


def test_a_mixer_without_mix_says_so():
    with pytest.raises(NotImplementedError, match="MixingLayer must define `mix`"):
        MixingLayer()(X)


def test_what_is_neither_is_refused():
    message = "attention must be an AttentionLayer or a MixingLayer, the config"
    with pytest.raises(ValueError, match=message):
        PerformerBlock(keras.layers.Dense(2), 4)
    config = keras.saving.serialize_keras_object(fourier())
    assert type(PerformerBlock(config, 4).attention) is FourierMixing
    attention = PerformerAttention(2, 3)
    assert PerformerBlock(attention, 4).attention is attention


@pytest.mark.parametrize("kind", [SpatialGatingUnit, TokenMixing])
def test_a_config_with_the_earlier_name_of_the_width(kind):
    config = kind(7, 6).get_config()
    config["hidden_dim"] = config.pop("intermediate_dim")
    assert kind.from_config(config).intermediate_dim == 6
