"""Logical CPUs as replicas give the numbers of one device, and equal features."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, RedrawFeatures
from tests.layers.inputs import language_model, normal

BATCH, STEPS, EPOCHS = 8, 3, 2
X, Y = normal((BATCH * STEPS, 6, 5), seed=2), normal((BATCH * STEPS, 6, 1), seed=3)


def one_device():
    return tf.distribute.get_strategy()


def mirrored(replicas, **options):
    devices = [f"CPU:{index}" for index in range(replicas)]
    return tf.distribute.MirroredStrategy(devices, **options)


def make_model(strategy, causal=False, **options):
    """Returns a model without XLA, which would take longer; one test uses XLA."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        sizes = dict(num_random_features=8, seed=3, chunk_size=2)
        layer = PerformerAttention(2, 3, causal=causal, **sizes)
        model = keras.Sequential([keras.Input((6, 5)), layer, keras.layers.Dense(1)])
        options = {"metrics": ["mae"], "jit_compile": False, **options}
        model.compile(keras.optimizers.Adam(0.05), "mse", **options)
    return model


def data():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    return dataset.batch(BATCH, drop_remainder=True)


def fit(model):
    """Trains on the same data for all strategies, and returns the losses."""
    redraw = RedrawFeatures(2)
    options = dict(epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[redraw])
    return model.fit(data(), **options).history["loss"]


def to_numpy(variable):
    return keras.ops.convert_to_numpy(variable)


def on_replicas(strategy, variable):
    values = strategy.experimental_local_results(variable.value)
    return [value.numpy() for value in values]


@pytest.mark.slow
def test_two_replicas_do_what_one_device_does(tmp_path):
    strategy, options = mirrored(2), dict(causal=True)
    model, alone = make_model(strategy, **options), make_model(one_device(), **options)
    losses, expected = fit(model), fit(alone)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]

    counts = [int(to_numpy(m.layers[0].redraw_count)) for m in (model, alone)]
    assert counts == [STEPS * EPOCHS // 2] * 2
    for weight, other in zip(model.weights, alone.weights):
        first, second = on_replicas(strategy, weight)
        np.testing.assert_array_equal(second, first, err_msg=weight.path)
        np.testing.assert_allclose(first, to_numpy(other), atol=1e-5)
    matrices = (to_numpy(m.layers[0].projection_matrix) for m in (model, alone))
    np.testing.assert_array_equal(*matrices)

    evaluated, wanted = (m.evaluate(data(), verbose=0) for m in (model, alone))
    assert evaluated == pytest.approx(wanted, rel=1e-5)
    predicted, wanted = (m.predict(data(), verbose=0) for m in (model, alone))
    np.testing.assert_allclose(predicted, wanted, atol=1e-5)
    assert predicted.std() > 0.1

    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(saved.predict(X, verbose=0), predicted, atol=1e-6)
    served = keras.layers.TFSMLayer(tmp_path / "exported", call_endpoint="serve")
    np.testing.assert_allclose(served(X), predicted, atol=1e-6)

    # training continues with another number of replicas
    # the default reduction allows only one number of devices per process
    many = mirrored(4, cross_device_ops=tf.distribute.ReductionToOneDevice())
    with many.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(to_numpy(loaded.optimizer.iterations)) == STEPS * EPOCHS
    loaded.layers[0].redraw_features()
    alone.layers[0].redraw_features()
    of_each = on_replicas(many, loaded.layers[0].projection_matrix)
    assert len(of_each) == 4
    for one in of_each:
        expected = to_numpy(alone.layers[0].projection_matrix)
        np.testing.assert_array_equal(one, expected)


@pytest.mark.slow
def test_mixed_precision_on_two_replicas_as_keras_compiles_it():
    keras.config.set_dtype_policy("mixed_bfloat16")
    alone = make_model(one_device())
    model = make_model(mirrored(2), jit_compile="auto")
    expected, losses = fit(alone), fit(model)
    assert model.layers[0].compute_dtype == "bfloat16"
    # bfloat16 has 8 bits: one rounding changes a value by up to 2^-9
    assert losses == pytest.approx(expected, rel=0.01)
    matrices = [to_numpy(m.layers[0].projection_matrix) for m in (alone, model)]
    np.testing.assert_array_equal(*matrices)
    assert matrices[0].dtype == np.float32


def recomputed_losses(strategy, recompute):
    """Returns the losses of a model with a regularizer, which each replica adds."""
    ids = np.random.default_rng(0).integers(0, 11, (8, 12))
    keras.utils.set_random_seed(7)
    with strategy.scope():
        features = dict(num_random_features=6, feature_map="relu", seed=1)
        options = dict(max_length=12, chunk_size=5, recompute=recompute)
        model = language_model(**options, **features)
        model.head.kernel.regularizer = keras.regularizers.L2(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = dict(metrics=["accuracy"], jit_compile=False)
        model.compile(keras.optimizers.SGD(0.1), loss, **options)
    data = tf.data.Dataset.from_tensor_slices((ids, ids)).batch(4)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    evaluated = model.evaluate(data, verbose=0)
    return [*history["loss"], *history["accuracy"], *evaluated]


@pytest.mark.slow
def test_recomputed_training_is_that_of_one_device():
    expected = recomputed_losses(one_device(), None)
    losses = recomputed_losses(mirrored(2), "network")
    assert losses == pytest.approx(expected, rel=1e-5)
