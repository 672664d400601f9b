"""PerformerAttention computes what it says: against NumPy and Keras' exact layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.feature_maps import SoftmaxFeatures
from tests.layers.inputs import normal, small_layer, twin

QUERY = normal((2, 5, 7))


@pytest.mark.parametrize(
    "feature_map, kind",
    [
        ("softmax", "masked"),
        ("favor+", "causal"),
        ("softmax", "cross"),
        ("softmax", "grouped"),
    ],
)
def test_many_features_give_the_exact_layer_of_keras(feature_map, kind):
    """Compared with predicting the mean of the values."""
    options = dict(feature_map=feature_map, num_random_features=4096, seed=3)
    if kind == "grouped":
        exact = keras.layers.GroupQueryAttention(8, 6, 2)
        layer = PerformerAttention(6, 8, num_key_value_heads=2, **options)
    else:
        common = dict(num_heads=2, key_dim=8, value_dim=5, output_shape=6)
        exact = keras.layers.MultiHeadAttention(**common)
        layer = PerformerAttention(**common, causal=kind == "causal", **options)
    x = normal((2, 24, 16), std=0.3)
    other = normal((2, 19, 16), seed=1, std=0.3) if kind == "cross" else x
    mask = tf.constant(np.arange(24) % 3 != [[0], [1]])
    call = {"masked": dict(value_mask=mask), "causal": dict(use_causal_mask=True)}
    for each in (exact, layer):
        each.build(x.shape, other.shape)
    # set, as biases are zero at first, and old versions of Keras draw smaller kernels
    weights = [
        normal(weight.shape, seed=index, std=0.1 if index % 2 else 0.25)
        for index, weight in enumerate(exact.weights)
    ]
    layer.set_weights([*weights, *layer.get_weights()[8:]])
    estimate = layer(x, other, **call.get(kind, {}))
    found = []
    for _ in range(2):
        exact.set_weights(weights)
        found.append(exact(x, other, **call.get(kind, {})))
        weights[0][:], weights[1][:] = 0, 0  # no query: equal attention to every key
    expected, mean = found
    error = np.linalg.norm(estimate - expected) / np.linalg.norm(mean - expected)
    assert error < 0.15


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
    output = layer(x)
    weights = {"kernel": [], "bias": []}
    for weight in layer.trainable_weights:
        weights[weight.name].append(weight.numpy())
        is_kernel = isinstance(weight.constraint, keras.constraints.NonNeg)
        assert is_kernel == (weight.name == "kernel")
        assert is_kernel or weight.constraint.max_value == 0.3
    penalties = 0.1 * sum(np.sum(x**2) for x in weights["kernel"])
    penalties += 0.01 * sum(np.sum(np.abs(x)) for x in weights["bias"])
    plain = twin(layer, x)
    dense = (plain.query_dense, plain.key_dense, plain.value_dense)
    activities = sum(np.sum(y**2) for y in [*(d(x).numpy() for d in dense), output])
    # Keras divides activity losses by the batch size, but not the oldest versions
    one = keras.layers.Dense(
        1, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0)
    )
    one(tf.ones((2, 1)))
    divided_by = 2 / float(sum(one.losses))
    assert divided_by in (1, 2)
    expected = penalties + activities / divided_by
    assert float(sum(layer.losses)) == pytest.approx(expected, rel=1e-5)


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


def test_batches_of_other_sizes_are_not_traced_again():
    traces = []

    class Counting(PerformerAttention):
        def call(self, query, training=None):
            traces.append(query.shape)
            return super().call(query, training=training)

    layer = Counting(2, 4, num_random_features=8, causal=True, dropout=0.1)
    layer.build((None, None, 7))
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 7))])
    for batch, length in ((2, 5), (2, 5), (3, 8)):
        assert run(normal((batch, length, 7))).shape == (batch, length, 7)
    assert len(traces) == 1

    model = keras.Sequential([keras.Input((None, 7)), layer])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(normal((4, 5, 7)), np.zeros((4, 5, 7)))
    traces.clear()
    for seed in (1, 2):
        model.train_on_batch(normal((4, 5, 7), seed), np.zeros((4, 5, 7)))
    assert traces == []
