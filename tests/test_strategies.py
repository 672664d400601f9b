"""Two logical CPUs as replicas: the numbers of one device, and identical features."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM, RedrawFeatures
from tests.layers.inputs import normal

BATCH, STEPS = 4, 5
X, Y = normal((BATCH * STEPS, 6, 5), seed=2), normal((BATCH * STEPS, 6, 1), seed=3)


@functools.cache
def two_replicas():
    """One strategy for all tests: in one process a second would repeat its keys."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(strategy, seed=3, causal=False, **options):
    """Trains on the same data whatever the strategy; returns losses and the layer."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layer = PerformerAttention(
            2, 3, num_random_features=8, seed=seed, causal=causal, chunk_size=2
        )
        model = keras.Sequential([keras.Input((6, 5)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", **options)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=True)
    history = model.fit(
        data, epochs=3, shuffle=False, verbose=0, callbacks=[RedrawFeatures(2)]
    )
    return history.history["loss"], layer


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [dict(causal=True, jit_compile=False), dict()],  # and what Keras chooses
    ids=["causal", "default"],
)
def test_replicas_are_identical_and_losses_those_of_one_device(options):
    strategy = two_replicas()
    losses, layer = train(strategy, **options)
    expected, alone = train(tf.distribute.get_strategy(), **options)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]
    counts = [keras.ops.convert_to_numpy(x.redraw_count) for x in (layer, alone)]
    assert counts == [15 // 2, 15 // 2]
    for weight, other in zip(layer.weights, alone.weights):
        replicas = strategy.experimental_local_results(weight.value)
        assert len(replicas) == 2
        first, second = (replica.numpy() for replica in replicas)
        np.testing.assert_array_equal(first, second, err_msg=weight.path)
        np.testing.assert_allclose(first, other, atol=1e-5, err_msg=weight.path)
    np.testing.assert_array_equal(layer.projection_matrix, alone.projection_matrix)


def test_unseeded_replicas_are_identical_after_each_redraw():
    strategy = two_replicas()
    with strategy.scope():
        layer = PerformerAttention(2, 3, num_random_features=8)
        layer.build((None, None, 5))
    seen = []
    for _ in range(3):
        first, second = strategy.experimental_local_results(
            layer.projection_matrix.value
        )
        np.testing.assert_array_equal(first, second)
        seen.append(first.numpy())
        layer.redraw_features()
    assert np.abs(seen[0] - seen[1]).max() > 0.1
    assert np.abs(seen[1] - seen[2]).max() > 0.1


@pytest.mark.slow
def test_a_language_model_trains_as_on_one_device():
    ids = np.random.default_rng(0).integers(0, 11, (16, 24))

    def losses(strategy):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = PerformerLM(11, 24, 2, 2, 8, num_random_features=6, seed=1)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1), loss)
        data = tf.data.Dataset.from_tensor_slices((ids, ids)).batch(8)
        redraw = RedrawFeatures(2)
        history = model.fit(
            data, epochs=3, shuffle=False, verbose=0, callbacks=[redraw]
        )
        return history.history["loss"]

    expected = losses(tf.distribute.get_strategy())
    assert expected[-1] < expected[0] - 0.1
    mirrored = losses(two_replicas())
    assert mirrored == pytest.approx(expected, rel=1e-5)
