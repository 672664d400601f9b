"""PerformerAttention computes what it says: against NumPy and Keras' exact layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.feature_maps import SoftmaxFeatures
from tests.contract import relative_error
from tests.layers.inputs import normal, small_layer, twin, value_and_gradients
from tests.layers.reference import performer_attention

QUERY, VALUE, KEY = (
    normal((2, length, width), seed)
    for seed, (length, width) in enumerate([(5, 7), (11, 6), (11, 9)])
)
KEY_MASK = np.arange(11) % 3 != np.array([[0], [1]])
EPSILON = 1e-3
GENERALIZED = {
    "relu": lambda projected, _: np.maximum(projected, 0) + EPSILON,
    "square": lambda projected, _: projected**2 + EPSILON,
    "sigmoid": lambda projected, _: 1 / (1 + np.exp(-projected)) + EPSILON,
}


@pytest.mark.parametrize("feature_map", ["softmax", "favor+", *GENERALIZED])
def test_cross_attention_is_what_the_weights_say(feature_map):
    layer = small_layer(feature_map=feature_map, value_dim=5, output_shape=8)
    mask = None if feature_map == "square" else KEY_MASK
    output, scores = layer(
        QUERY, VALUE, KEY, key_mask=mask, return_attention_scores=True
    )
    expected, weights = performer_attention(
        layer, QUERY, VALUE, KEY, mask, features=GENERALIZED.get(feature_map)
    )
    assert relative_error(output, expected) < 2e-6
    assert relative_error(scores, weights) < 2e-6


@pytest.mark.parametrize(
    "feature_map, key_value_heads",
    [("softmax", 1), ("favor+", 3), ("relu", 6), ("square", 1), ("sigmoid", 3)],
)
def test_causal_attention_is_what_the_weights_say(feature_map, key_value_heads):
    layer = small_layer(
        feature_map=feature_map,
        num_heads=6,
        num_key_value_heads=key_value_heads,
        causal=True,
        chunk_size=4,
    )
    output, scores = layer(VALUE, return_attention_scores=True)
    expected, weights = performer_attention(
        layer, VALUE, causal=True, features=GENERALIZED.get(feature_map)
    )
    assert relative_error(output, expected) < 3e-6
    assert relative_error(scores, weights) < 3e-6
    assert layer(VALUE).shape == (2, 11, 6)


def test_attention_without_projection_is_what_the_weights_say():
    layer = small_layer(feature_map="sigmoid", num_random_features=None)
    expected, _ = performer_attention(
        layer_built(layer, QUERY), QUERY, features=GENERALIZED["sigmoid"]
    )
    assert relative_error(layer(QUERY), expected) < 2e-6
    assert layer.projection_matrix is None
    assert layer.redraw_count is None
    with pytest.raises(ValueError, match="num_random_features=None"):
        layer.redraw_features()


@pytest.mark.parametrize("causal", [False, True])
def test_float64_gradients_are_those_of_the_formula(causal):
    keras.config.set_dtype_policy("float64")
    layer = small_layer(causal=causal, feature_map="favor+", chunk_size=3)
    x = tf.constant(normal((1, 5, 7), dtype="float64"))
    _, gradients = value_and_gradients(layer, x)
    assert gradients[0].dtype == tf.float64
    step, random = 1e-5, np.random.default_rng(0)
    arrays = [x.numpy(), *(w.numpy() for w in layer.trainable_weights)]
    # the derivative along one random direction for each input and weight
    for index, gradient in enumerate(gradients):
        direction = random.standard_normal(arrays[index].shape)
        losses = []
        for sign in (1, -1):
            moved = [a + 0 for a in arrays]
            moved[index] += sign * step * direction
            layer.set_weights([*moved[1:], *layer.get_weights()[len(moved) - 1 :]])
            output, _ = performer_attention(layer, moved[0], causal=causal)
            weights = np.float64(normal((1, 1, 7), seed=9))
            losses.append(np.sum((output * weights) ** 2))
        slope = (losses[0] - losses[1]) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-6, abs=1e-8)


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


def layer_built(layer, inputs):
    layer.build(inputs.shape)
    return layer
