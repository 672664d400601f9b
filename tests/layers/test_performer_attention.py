"""PerformerAttention against NumPy and Keras' exact layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps, zoo
from keras_performer.conversion.attention_like import attention_like
from tests.layers.inputs import normal, small_layer

DROPPING = [
    small_layer,
    lambda **options: zoo.LinformerAttention(3, 4, projection_dim=5, **options),
    lambda **options: zoo.SynthesizerAttention(3, 4, kind="random", **options),
]


def dropping(make, **options):
    if make is not small_layer:
        options["max_length"] = 9
    return make(dropout=0.4, seed=8, **options)


@pytest.mark.parametrize("make", DROPPING)
def test_dropout_acts_in_training_only_and_keeps_the_mean(make):
    layer = dropping(make)
    x = normal((2, 9, 7))
    clean = layer(x).numpy()
    np.testing.assert_array_equal(layer(x, training=False), clean)
    many = layer(np.tile(x, (200, 1, 1)), training=True)
    dropped = np.reshape(many, (200, *x.shape))
    assert (np.abs(dropped - clean).max(axis=(1, 2, 3)) > 0.01).all()
    standard_error = dropped.std(axis=0, ddof=1) / np.sqrt(len(dropped))
    assert np.abs((dropped.mean(axis=0) - clean) / standard_error).max() < 4.5


@pytest.mark.parametrize("make", DROPPING)
def test_numbers_of_a_value_drop_together_where_weights_drop(make):
    layer, x = dropping(make, output_shape=12, use_bias=False), normal((2, 9, 7))
    layer.build(x.shape)
    kernel = layer.value_dense.kernel
    kernel.assign(np.repeat(kernel[..., :1], 4, axis=-1))  # four equal numbers
    layer.output_dense.kernel.assign(np.eye(12).reshape(3, 4, 12))
    output = np.reshape(layer(x, training=True), (2, 9, 3, 4))
    together = np.ptp(output, axis=-1) < 1e-6
    assert together.all() if make is not small_layer else not together.all()


def test_regularizers_and_constraints_reach_every_dense_layer():
    options = dict(
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.01),
        activity_regularizer=keras.regularizers.L2(1.0),
        kernel_constraint=keras.constraints.NonNeg(),
        bias_constraint=keras.constraints.MaxNorm(0.3),
    )
    layer = small_layer(**options)
    layer(normal((2, 9, 7)))
    dense = layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense
    for each in dense:
        for name, given in options.items():
            found = getattr(each, name)
            assert type(found) is type(given)
            assert found.get_config() == given.get_config()
    assert len(layer.losses) == 3 * len(dense)  # the layer itself adds no other loss


# -- Each matrix of random features is a function of the seed and the redraw count.


def layer(seed=5, **options):
    options = {"num_random_features": 12, "seed": seed, **options}
    made = PerformerAttention(num_heads=2, key_dim=5, **options)
    made.build((None, None, 7))
    return made


def sequence(attention, num_redraws):
    """Returns the matrices before and after each of `num_redraws` redraws."""
    matrices = [attention.projection_matrix.numpy()]
    for _ in range(num_redraws):
        attention.redraw_features()
        matrices.append(attention.projection_matrix.numpy())
    return np.stack(matrices)


@pytest.mark.parametrize("feature_map", ["softmax", "favor+", "relu"])
def test_a_matrix_is_the_draw_of_the_feature_map_with_seed_and_number(feature_map):
    """The matrix does not depend on global state."""
    found = sequence(layer(5, feature_map=feature_map), 3)
    draw = feature_maps.get(feature_map).draw
    expected = [draw(12, 5, seed=(5, number)) for number in range(4)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", [2**31 + 5, 2**40, -1])
def test_seeds_of_any_size_work(seed):
    first = sequence(layer(seed), 1)
    np.testing.assert_array_equal(sequence(layer(seed), 1), first)
    assert np.abs(first[0] - first[1]).max() > 0.1
    assert np.abs(first - sequence(layer(5), 1)).max() > 0.1


@pytest.mark.parametrize("seed", [5, None])
def test_two_redraws_in_a_graph_equal_a_redraw_by_two(seed):
    one, other = layer(seed), layer(seed)
    other.set_weights(one.get_weights())
    redraw = tf.function(one.redraw_features)
    redraw()
    redraw()
    other.redraw_features(2)
    assert int(one.redraw_count) == int(other.redraw_count) == 2
    np.testing.assert_array_equal(one.projection_matrix, other.projection_matrix)


def test_a_layer_like_another_goes_on_in_its_sequence():
    one = layer(None)
    one.redraw_features(2)
    like = attention_like(PerformerAttention, one, exact_window=3)
    np.testing.assert_array_equal(sequence(like, 2), sequence(one, 2))
    assert int(like.redraw_count) == 4
    seeded = attention_like(PerformerAttention, one, seed=5)
    np.testing.assert_array_equal(sequence(seeded, 1), sequence(layer(5), 1))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_output_changes_with_a_redraw_and_not_otherwise(jit_compile):
    attention = layer(5, jit_compile=jit_compile)
    x = np.random.default_rng(0).standard_normal((2, 6, 7)).astype("float32")
    before = attention(x).numpy()
    np.testing.assert_array_equal(attention(x, training=True), before)
    compiled = tf.function(attention.__call__)
    np.testing.assert_allclose(compiled(x), before, atol=1e-6)
    attention.redraw_features()
    after = attention(x).numpy()
    assert np.abs(after - before).max() > 1e-3
    # the graph reads the weight, and does not store it as a constant
    np.testing.assert_allclose(compiled(x), after, atol=1e-6)


def test_the_kernel_gets_every_bit_of_the_matrix():
    seen = []

    class Spy(feature_maps.SoftmaxFeatures):
        def kernel(self, projection_matrix):
            seen.append(tf.convert_to_tensor(projection_matrix))
            return super().kernel(projection_matrix)

    keras.config.set_dtype_policy("mixed_bfloat16")
    attention = layer(5, feature_map=Spy())
    outer = keras.Sequential([attention])
    for call in (attention, outer):
        call(tf.ones((1, 3, 7)))
        assert seen[-1].dtype == tf.float32
        np.testing.assert_array_equal(seen[-1], attention.projection_matrix)
    assert len(seen) >= 2
