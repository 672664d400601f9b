"""The layer in the models that users build, and traced no more often than needed."""

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention
from tests.contract import assert_equal_bits
from tests.layers.inputs import normal, small_layer, twin


def sequential():
    return keras.Sequential(
        [keras.Input((None, 7)), small_layer(causal=True), keras.layers.Dense(2)]
    )


@keras.saving.register_keras_serializable(package="tests")
class Subclass(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = small_layer(causal=True)
        self.dense = keras.layers.Dense(2)

    def call(self, x, training=None):
        return self.dense(self.attention(x, training=training))


def test_sequential_functional_and_subclass_are_the_same():
    x = tf.constant(normal((3, 6, 7)))
    model = sequential()
    inputs = keras.Input((None, 7))
    attention, dense = small_layer(causal=True), keras.layers.Dense(2)
    functional = keras.Model(inputs, dense(attention(inputs)))
    functional.set_weights(model.get_weights())
    assert_equal_bits(functional(x), model(x))
    subclass = Subclass()
    subclass(x)
    subclass.set_weights(model.get_weights())
    assert_equal_bits(subclass(x), model(x))
    subclass.save("subclass.keras")
    restored = keras.saving.load_model("subclass.keras")
    assert_equal_bits(restored(x), model(x))
    assert_equal_bits(model.predict(x, verbose=0), model.predict(x, verbose=0))


def test_clone_of_an_unseeded_layer_draws_its_own_features():
    model = keras.Sequential([keras.Input((None, 7)), small_layer(seed=None)])
    clone = keras.models.clone_model(model)
    one, other = (m.layers[0].projection_matrix.numpy() for m in (model, clone))
    assert np.abs(one - other).max() > 0.1
    clone.set_weights(model.get_weights())
    x = tf.constant(normal((3, 6, 7)))
    assert_equal_bits(clone(x), model(x))
    model.layers[0].redraw_features()
    clone.layers[0].redraw_features()
    assert_equal_bits(clone(x), model(x))


def test_keyword_arguments_and_positions_are_those_of_keras():
    layer = small_layer()
    query, value, key = (normal((2, n, 7), n) for n in (5, 6, 6))
    by_keyword = layer(query, key=key, value=value)
    assert_equal_bits(layer(query, value, key), by_keyword)
    without_key = layer(query, value)
    assert_equal_bits(without_key, layer(query, value, value))
    assert_equal_bits(twin(layer, query)(query), layer(query, query, query))


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
