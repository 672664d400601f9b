"""PerformerAttention computes what it says: against NumPy and Keras' exact layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.feature_maps import SoftmaxFeatures
from tests.contract import relative_error
from tests.layers import twins
from tests.layers.inputs import normal, small_layer, twin, value_and_gradients
from tests.layers.twins import assert_is_twin

QUERY = normal((2, 5, 7))


@pytest.mark.parametrize("causal", [False, True])
def test_float64_gradients_are_those_of_the_formula(causal):
    keras.config.set_dtype_policy("float64")
    layer = small_layer(causal=causal, feature_map="favor+", chunk_size=3)
    layer.build(QUERY.shape)
    assert_is_twin(layer, twins.attention(layer), [QUERY])
    x = tf.constant(QUERY, "float64")
    _, gradients = value_and_gradients(layer, x)
    assert {x.dtype for x in (layer(x), *gradients)} == {tf.float64}


@pytest.mark.parametrize(
    "feature_map, kind",
    [("softmax", "masked"), ("favor+", "causal"), ("softmax", "cross")],
)
def test_many_features_give_the_exact_layer_of_keras(feature_map, kind):
    options = dict(num_heads=2, key_dim=8, value_dim=5, output_shape=6)
    exact = keras.layers.MultiHeadAttention(**options)
    layer = PerformerAttention(
        **options,
        feature_map=feature_map,
        num_random_features=4096,
        causal=kind == "causal",
        seed=3,
    )
    x = normal((2, 24, 16), std=0.3)
    inputs = [x, normal((2, 19, 16), seed=1, std=0.3)] if kind == "cross" else [x, x]
    call = {}
    if kind == "masked":
        call = dict(value_mask=tf.constant(np.arange(24) % 3 != [[0], [1]]))
    elif kind == "causal":
        call = dict(use_causal_mask=True)
    assert_close_to_exact(exact, layer, inputs, call)


def test_many_features_give_grouped_queries_of_keras():
    exact = keras.layers.GroupQueryAttention(8, 6, 2)
    layer = PerformerAttention(
        6, 8, num_key_value_heads=2, num_random_features=4096, seed=3
    )
    x = normal((2, 24, 16), std=0.3)
    assert_close_to_exact(exact, layer, [x, x], {})


def assert_close_to_exact(exact, layer, inputs, call):
    """Copies the weights one to one, and compares with predicting the mean of V."""
    exact.build(*(x.shape for x in inputs))
    layer.build(*(x.shape for x in inputs))
    weights = exact.get_weights()
    assert len(weights) == 8
    # set, as biases are zero at first, and old versions of Keras draw smaller kernels
    weights = [
        normal(weight.shape, seed=index, std=0.1 if index % 2 else 0.25)
        for index, weight in enumerate(weights)
    ]
    exact.set_weights(weights)
    paths = ["/".join(w.path.split("/")[1:]) for w in exact.weights]
    assert ["/".join(w.path.split("/")[1:]) for w in layer.weights[:8]] == paths
    layer.set_weights([*weights, *layer.get_weights()[8:]])
    tensors = [tf.constant(x) for x in inputs]
    expected = exact(*tensors, **call).numpy()
    estimate = layer(*tensors, **call).numpy()
    weights[0][:], weights[1][:] = 0, 0  # no query: equal attention to every key
    exact.set_weights(weights)
    mean = exact(*tensors, **call).numpy()
    error = np.linalg.norm(estimate - expected) / np.linalg.norm(mean - expected)
    assert error < 0.15


def test_use_causal_mask_is_causal():
    layer = small_layer()
    x = normal((2, 9, 7))
    output = layer(x, use_causal_mask=True)
    causal = twin(layer, x, causal=True)
    np.testing.assert_array_equal(causal(x), output)
    assert relative_error(layer(x), output) > 0.1


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    layer = small_layer(dropout=0.4, seed=8)
    x = normal((2, 9, 7))
    clean = layer(x).numpy()
    np.testing.assert_array_equal(layer(x, training=False), clean)
    np.testing.assert_array_equal(twin(layer, x, seed=8)(x), clean)
    many = layer(np.tile(x, (200, 1, 1)), training=True)
    dropped = np.reshape(many, (200, *x.shape))
    assert (np.abs(dropped - clean).max(axis=(1, 2, 3)) > 0.01).all()
    standard_error = dropped.std(axis=0, ddof=1) / np.sqrt(len(dropped))
    assert np.abs((dropped.mean(axis=0) - clean) / standard_error).max() < 4.5


def test_regularizers_and_constraints_reach_every_dense_layer():
    layer = small_layer(
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.01),
        activity_regularizer=keras.regularizers.L2(1.0),
        kernel_constraint="non_neg",
        bias_constraint=keras.constraints.MaxNorm(0.3),
    )
    x = tf.constant(normal((2, 9, 7)))
    output = layer(x).numpy()
    penalties = [
        0.1 * np.sum(weight.numpy() ** 2)
        if weight.name == "kernel"
        else 0.01 * np.sum(np.abs(weight.numpy()))
        for weight in layer.trainable_weights
    ]
    plain = twin(layer, x)
    dense = (plain.query_dense, plain.key_dense, plain.value_dense)
    activities = [np.sum(y.numpy() ** 2) for y in [d(x) for d in dense]]
    activities.append(np.sum(output**2))
    # Keras divides activity losses by the batch size, but not the oldest versions
    one = keras.layers.Dense(
        1, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0)
    )
    one(tf.ones((2, 1)))
    divided_by = 2 / float(sum(one.losses))
    assert divided_by in (1, 2)
    expected = sum(penalties) + sum(activities) / divided_by
    assert float(sum(layer.losses)) == pytest.approx(expected, rel=1e-5)
    for weight in layer.trainable_weights:
        if weight.name == "kernel":
            assert isinstance(weight.constraint, keras.constraints.NonNeg)
        else:
            assert weight.constraint.max_value == 0.3


def test_policy_of_one_layer_and_dtype_of_inputs():
    layer = small_layer(dtype="mixed_bfloat16")
    x = normal((2, 9, 7))
    assert layer(x).dtype == tf.bfloat16
    assert layer.projection_matrix.dtype == "float32"
    assert {w.dtype for w in layer.trainable_weights} == {"float32"}
    wide = small_layer()
    assert wide(x.astype("float64")).dtype == tf.float32
    np.testing.assert_array_equal(wide(x.astype("float64")), wide(x))


def test_projection_does_not_train_or_regularize():
    feature_map = SoftmaxFeatures(hyperbolic=False, orthogonal=False)
    layer = small_layer(feature_map=feature_map, kernel_regularizer="l2")
    layer.build((None, None, 7))
    names = [w.name for w in layer.non_trainable_weights]
    assert sorted(names) == ["projection_matrix", "projection_seed", "redraw_count"]
    assert len(layer.losses) == 4
    layer.trainable = False
    assert layer.trainable_weights == []
    layer.trainable = True  # thawed again, it is the same eight weights that train
    assert [w.name for w in layer.trainable_weights] == ["kernel", "bias"] * 4
    with tf.GradientTape() as tape:
        tape.watch(layer.projection_matrix.value)
        loss = tf.reduce_sum(layer(QUERY) ** 2)
    assert tape.gradient(loss, layer.projection_matrix.value) is None
