"""Statements of `keras_privates` about Keras hold for the installed version."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import keras_privates


def test_an_implicit_mask_is_what_an_embedding_sets():
    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(np.array([[1, 0, 2]]))
    mask = keras_privates.implicit_mask(embedded)
    np.testing.assert_array_equal(mask, [[True, False, True]])
    assert keras_privates.implicit_mask(tf.ones((1, 3))) is None


def test_a_mask_that_is_set_is_what_layers_and_losses_read():
    x = tf.constant([[[1.0], [5.0]]])
    keras_privates.set_implicit_mask(x, tf.constant([[True, False]]))
    mean = keras.layers.GlobalAveragePooling1D()(x)
    np.testing.assert_array_equal(mean, [[1.0]])

    class GivenValues(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return values

    values = tf.constant([[1.0, 5.0]])
    assert float(GivenValues()(values, values)) == 3.0
    keras_privates.set_implicit_mask(values, tf.constant([[True, False]]))
    assert float(GivenValues()(values, values)) == pytest.approx(1.0, rel=1e-5)


def test_symbolic_calls_have_all_arguments():
    layer = keras.layers.MultiHeadAttention(2, 3)
    one, other = keras.Input((5, 4)), keras.Input((7, 4))
    layer(one, other)
    layer(other, value=one, use_causal_mask=True)
    layer(tf.ones((1, 5, 4)), tf.ones((1, 7, 4)))  # not a symbolic call
    (first, named), (second, more) = keras_privates.symbolic_calls(layer)
    assert first[0] is one and first[1] is other and not named
    assert second[0] is other and more["value"] is one
    assert more["use_causal_mask"] is True
    assert keras_privates.symbolic_calls(keras.layers.Dense(2)) == []


def test_a_value_without_autocast_has_the_dtype_of_its_variable():
    class Both(keras.layers.Layer):
        def build(self, input_shape):
            self.weight = self.add_weight(shape=(), initializer="ones")

        def call(self, x):
            value = keras_privates.value_without_autocast(self.weight)
            self.dtypes = tf.convert_to_tensor(self.weight).dtype, value.dtype
            return x

    layer = Both(dtype="mixed_bfloat16")
    layer(tf.ones((1,)))
    assert layer.dtypes == (tf.bfloat16, tf.float32)


def test_compile_options_are_read_in_a_training_step():
    seen = []

    class Model(keras.Sequential):
        def train_step(self, data):
            seen.append(keras_privates.compile_options(self))
            return super().train_step(data)

    model = Model([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", loss_weights=0.5, weighted_metrics=["mae"])
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    assert seen[0]["loss_weights"] == 0.5
    assert seen[0]["weighted_metrics"] == ["mae"]


def test_an_additional_loss_is_what_keras_adds():
    regularizer = keras.regularizers.L2(0.1)
    dense = keras.layers.Dense(1, kernel_regularizer=regularizer)
    model = keras.Sequential([keras.Input((2,)), dense])
    model.compile("sgd", "mse")
    x = tf.ones((3, 2))
    y = model(x)  # so that the compiled loss is 0
    (loss,) = model.losses
    added = keras_privates.additional_loss(model, loss)
    expected = 0.1 * np.square(dense.kernel.numpy()).sum()
    assert float(added) == pytest.approx(expected)
    assert float(model.compute_loss(x, y, y)) == pytest.approx(expected)


def test_the_function_inside_a_metric_and_a_loss():
    def error(y_true, y_pred, power):
        return tf.abs(y_true - y_pred) ** power

    metric = keras.metrics.MeanMetricWrapper(error, "error", power=3)
    assert keras_privates.wrapped_function(metric) == (error, {"power": 3})
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=2)
    function, options = keras_privates.wrapped_function(loss)
    assert options["ignore_class"] == 2
    metric = keras.metrics.MeanMetricWrapper(loss, "loss")
    assert keras_privates.wrapped_function(metric) == (loss, {})

    class OwnLoss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return y_pred

    assert keras_privates.wrapped_function(OwnLoss()) == (None, {})


def test_a_layer_inside_of_a_built_one_is_exchanged():
    class Outer(keras.layers.Layer):
        def build(self, shape):
            self.parts = [keras.layers.Dense(2)]
            self.parts[0].build(shape)

    outer = Outer()
    outer.build((None, 3))
    before, other = outer.parts[0], keras.layers.Dense(4)
    other.build((None, 3))
    keras_privates.exchange(outer, "parts", [other], before)
    assert outer.parts[0] is other
    assert [id(w) for w in outer.weights] == [id(w) for w in other.weights]
    # the layer still refuses new layers
    with pytest.raises(ValueError, match="already built"):
        outer.more = keras.layers.Dense(5)
    # Keras keeps layers in no other attributes
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    graph = keras.Model(model.inputs, model.outputs)
    for layer in (outer, model, graph):
        noted = {name for name, value in vars(layer).items() if holds_a_layer(value)}
        assert noted <= keras_privates.NOTED_LAYERS | {"parts"}


def holds_a_layer(value):
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        return any(map(holds_a_layer, values))
    return isinstance(value, keras.layers.Layer)
