"""`LinearTransformerAttention` beside the equations of its paper."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps
from keras_performer.layers import LinearTransformerAttention, PerformerBlock
from tests.layers import costs, twins
from tests.layers.inputs import normal
from tests.layers.twins import (
    assert_is_twin,
    randomize,
    weights_of,
)
from tests.models.token_models import loss_and_gradients, small_model


def small(shapes=((2, 7, 5),), **options):
    defaults = dict(value_dim=2, dtype="float64")
    layer = LinearTransformerAttention(4, 3, **{**defaults, **options})
    layer.build(*shapes)
    randomize(layer, std=1.0)
    return layer


@pytest.mark.parametrize(
    "use_causal_mask, num_key_value_heads", [(True, 4), (False, 2)]
)
def test_it_is_the_equation(use_causal_mask, num_key_value_heads):
    layer = small(num_key_value_heads=num_key_value_heads, chunk_size=3)
    seen = np.ones((2, 7), bool)
    seen[0, 4:] = seen[1, :2] = seen[1, 4] = False
    call = dict(key_mask=seen, use_causal_mask=use_causal_mask)
    assert_is_twin(layer, twins.attention(layer), [normal((2, 7, 5), 1)], **call)


@pytest.mark.parametrize(
    "length, chunk_size, use_causal_mask",
    [(1, None, True), (13, 4, True), (13, 1, False), (70, None, True)],
)
def test_it_is_the_equation_at_any_length(length, chunk_size, use_causal_mask):
    layer = small(chunk_size=chunk_size, use_bias=False)
    call = dict(use_causal_mask=use_causal_mask)
    assert_is_twin(layer, twins.attention(layer), [normal((2, length, 5), 1)], **call)


def test_keys_may_be_of_another_sequence():
    inputs = normal((2, 3, 5), 1), normal((2, 7, 6), 2)
    layer = small([x.shape for x in inputs])
    assert_is_twin(layer, twins.attention(layer), inputs)


def test_nothing_is_scaled_or_added():
    """`PerformerAttention` makes another kernel from the same weights."""
    layer, x = small(), normal((2, 7, 5), 1)

    def other(epsilon):
        features = feature_maps.GeneralizedFeatures("elu", epsilon)
        options = dict(feature_map=features, num_random_features=None)
        other = PerformerAttention(4, 3, value_dim=2, dtype="float64", **options)
        other.build(x.shape)
        other.set_weights(layer.get_weights())
        return other

    assert np.abs(layer(x) - other(0.0)(x)).max() > 1e-2
    scaled = other(0.0), other(1e-3)
    for each in scaled:
        for dense in (each.query_dense, each.key_dense):
            for weight in dense.weights:
                weight.assign(weight * 3**0.25)
    np.testing.assert_allclose(scaled[0](x), layer(x), rtol=1e-9)
    assert np.abs(scaled[1](x) - layer(x)).max() > 1e-5


def test_features_far_below_rounding_count():
    """1 + elu(x) is 0 in float32 from x = -17 on."""
    layer = small(use_bias=True, dtype="float32")
    layer.key_dense.bias.assign(tf.fill((4, 3), -30.0))
    x = normal((2, 7, 5), 1)
    expected = twins.attention(layer)(weights_of(layer), x)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_pieces_in_two_passes_are_the_whole():
    layer = small(num_key_value_heads=2)
    x, seen = normal((2, 12, 5), 1, dtype="float64"), np.ones((2, 12), bool)
    seen[1, :5] = False
    pieces = [(x[:, here], seen[:, here]) for here in (slice(0, 7), slice(7, 12))]
    state = layer.empty_state(2)
    for piece in pieces:
        state = layer.absorb(*piece, state)
    output = tf.concat([layer.answer(*piece, state) for piece in pieces], 1)
    np.testing.assert_allclose(output, layer(x, query_mask=seen), rtol=1e-9)


def test_lengths_may_be_unknown():
    layer, x = small(), normal((3, 7, 5), 1, dtype="float64")
    seen = np.arange(7) < [[7], [4], [2]]

    def attend(x, seen):
        return layer(x, key_mask=seen, use_causal_mask=True)

    specs = [((None, None, 5), "float64"), ((None, None), "bool")]
    specs = [tf.TensorSpec(*spec) for spec in specs]
    unknown = tf.function(attend, input_signature=specs)
    np.testing.assert_allclose(unknown(x, seen), attend(x, seen), rtol=1e-10)


def test_the_largest_tensor_grows_as_the_length():
    def largest(length):
        layer = LinearTransformerAttention(2, 4, causal=True)
        return costs.largest_tensor(layer, (3, length, 8))

    assert largest(1024) <= 4 * largest(256)


def test_a_block_takes_it():
    block = PerformerBlock(LinearTransformerAttention(2, 4, causal=True), 11)
    x = normal((2, 7, 8), 1)
    losses = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((block(x) + x) ** 2)
        gradients = tape.gradient(loss, block.trainable_weights)
        for weight, gradient in zip(block.trainable_weights, gradients):
            weight.assign_sub(0.1 * gradient)
        losses.append(float(loss))
    assert losses[1] < losses[0]


def test_models_compute_it_again_in_chunks():
    recompute, causal = "block", False
    attention = LinearTransformerAttention(2, 4, causal=causal, chunk_size=4)
    options = dict(attention=attention, causal=causal)
    results = loss_and_gradients(small_model(recompute=recompute, **options))
    expected = loss_and_gradients(small_model(**options))
    for result, wanted in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
