"""RedrawFeatures counts optimizer steps of all kinds, or says why it cannot redraw.

`tests/test_multi_worker.py` tests training that was killed and resumed.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, RedrawFeatures, feature_maps
from tests.layers.inputs import normal


def small_attention(**options):
    return PerformerAttention(2, 3, **{"num_random_features": 8, **options})


def attention_of(model):
    return next(x for x in model._flatten_layers() if isinstance(x, PerformerAttention))


def redraws(model):
    return int(attention_of(model).redraw_count)


def build_model(layers=None, **options):
    """Returns a compiled model; eager, as tracing takes longer than a few steps."""
    keras.utils.set_random_seed(7)
    if layers is None:
        layers = [small_attention(feature_map="favor+", seed=3)]
    model = keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(1)])
    defaults = dict(optimizer=keras.optimizers.Adam(0.01), run_eagerly=True)
    model.compile(loss="mse", jit_compile=False, **{**defaults, **options})
    return model


def batches(number):
    """Returns data for `number` different batches of 4."""
    x, y = normal((4 * number, 6, 5), seed=2), normal((4 * number, 6, 1), seed=3)
    return dict(x=x, y=y, batch_size=4, shuffle=False, verbose=0)


def assert_matrix_after(model, num_redraws):
    layer = attention_of(build_model())
    if num_redraws:
        layer.redraw_features(num_redraws)
    found = attention_of(model).projection_matrix
    np.testing.assert_array_equal(found, layer.projection_matrix)


class Record(keras.callbacks.Callback):
    """Records the number of redraws after every step."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def on_train_batch_end(self, batch, logs=None):
        self.counts.append(redraws(self.model))


@pytest.mark.slow
@pytest.mark.parametrize(("steps_per_execution", "every_n_steps"), [(3, 5), (7, 2)])
def test_count_is_steps_over_n(steps_per_execution, every_n_steps):
    model = build_model(run_eagerly=False, steps_per_execution=steps_per_execution)
    callback = RedrawFeatures(every_n_steps)
    for epochs in (1, 2):  # the second fit continues after the first one
        model.fit(**batches(20), epochs=epochs, callbacks=[callback])
        iterations = int(model.optimizer.iterations)
        assert iterations == (20 if epochs == 1 else 60)
        assert redraws(model) == iterations // every_n_steps
        assert_matrix_after(model, iterations // every_n_steps)


def test_redraws_happen_after_the_step_that_completes_n():
    model, record, callback = build_model(), Record(), RedrawFeatures(3)
    data = batches(4)
    model.evaluate(data["x"], data["y"], verbose=0, callbacks=[callback])
    model.predict(data["x"], verbose=0, callbacks=[callback])
    assert redraws(model) == 0
    model.fit(**batches(7), callbacks=[callback, record])
    assert record.counts == [0, 0, 1, 1, 1, 2, 2]


def test_gradient_accumulation_counts_updates():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    model = build_model(optimizer=optimizer)
    model.fit(**batches(14), callbacks=[RedrawFeatures(2)])
    assert (int(optimizer.iterations), redraws(model)) == (4, 2)


def test_loss_scaling_of_mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    model = build_model()
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.fit(**batches(14), callbacks=[RedrawFeatures(3)])
    iterations = int(model.optimizer.iterations)
    assert iterations > 6 and redraws(model) == iterations // 3
    assert np.isfinite(model.predict(batches(1)["x"], verbose=0)).all()


def test_redraws_by_hand_stay_and_missing_ones_are_made_up_for():
    model = build_model()
    model.fit(**batches(4))
    assert redraws(model) == 0
    record = Record()
    model.fit(**batches(2), callbacks=[RedrawFeatures(3), record])
    assert record.counts == [1, 2]
    attention_of(model).redraw_features(4)
    model.fit(**batches(3), callbacks=[RedrawFeatures(3)])
    assert redraws(model) == 7


class RollBack(keras.callbacks.Callback):
    """Restores after the third epoch the variables of the first."""

    def __init__(self, of_optimizer):
        super().__init__()
        self.of_optimizer = of_optimizer

    def on_epoch_end(self, epoch, logs=None):
        variables = [*self.model.variables]
        if self.of_optimizer:
            variables += self.model.optimizer.variables
        if epoch == 0:
            self.kept = [variable.numpy() for variable in variables]
        if epoch == 2:
            for variable, value in zip(variables, self.kept, strict=True):
                variable.assign(value)


@pytest.mark.parametrize(
    ("of_optimizer", "last"), [(True, [2, 3, 3, 4]), (False, [2, 7, 7, 8])]
)
def test_redraws_go_on_from_what_is_restored_in_between(of_optimizer, last):
    """Redraws follow the restored step, or the optimizer's step if that stays."""
    model, record = build_model(), Record()
    callbacks = [RedrawFeatures(2), record, RollBack(of_optimizer)]
    model.fit(**batches(4), epochs=4, callbacks=callbacks)
    assert record.counts == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, *last]
    assert_matrix_after(model, last[-1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: build_model([keras.Sequential([small_attention()])]),
        # the first batch builds it
        lambda: keras.Sequential([small_attention(), keras.layers.Dense(1)]),
    ],
)
def test_a_layer_inside_other_layers_or_built_late_is_found(make):
    model = make()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(**batches(5), callbacks=[RedrawFeatures(2)])
    assert redraws(model) == 2


def test_a_loop_that_only_tells_of_the_end_of_batches():
    model, callback, counts = build_model(), RedrawFeatures(2), []
    callback.set_model(model)
    attention_of(model).redraw_features(3)
    for batch in range(5):
        model.optimizer.iterations.assign_add(1)
        callback.on_train_batch_end(batch)
        counts.append(redraws(model))
    assert counts == [3, 4, 4, 5, 5]


def test_every_layer_is_redrawn_with_a_sequence_of_its_own_and_told_of(capsys):
    model = build_model([small_attention(seed=3), small_attention(seed=4)])
    model.fit(**batches(2), callbacks=[RedrawFeatures(2)])
    assert capsys.readouterr().out == ""
    model.fit(**batches(2), callbacks=[RedrawFeatures(2, verbose=1)])
    printed = capsys.readouterr().out
    assert printed.count("Redrew") == 2
    for layer in model.layers[:2]:
        assert printed.count(f"features of {layer.path}.") == 1
        assert int(layer.redraw_count) == 2
    one, other = (layer.projection_matrix.numpy() for layer in model.layers[:2])
    assert np.abs(one - other).max() > 0.1


def test_config():
    callback = RedrawFeatures(every_n_steps=5, verbose=1)
    config = keras.saving.serialize_keras_object(callback)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == {"every_n_steps": 5, "verbose": 1}


# -- Models in which it cannot redraw.


class Trained(feature_maps.SoftmaxFeatures):
    trainable = True


def trained():
    return small_attention(feature_map=Trained())


def frozen():
    return small_attention(trainable=False)


def relu():
    return small_attention(feature_map="relu", num_random_features=None)


@pytest.mark.parametrize(
    "make, steps, message",
    [
        (lambda: build_model([]), 0, "at least one PerformerAttention"),
        (lambda: build_model([relu()]), 0, "at least one PerformerAttention"),
        (lambda: build_model([trained()]), 0, "random features do not train"),
        (lambda: build_model([frozen()]), 0, "not frozen .* leave the callback out"),
        (lambda: keras.Sequential([small_attention()]), 7, "After 7 .* build the mod"),
    ],
)
def test_a_model_without_features_to_redraw_raises(make, steps, message):
    model = make()
    model.compile("sgd", "mse", run_eagerly=True)
    model.optimizer.iterations.assign(steps)
    with pytest.raises(ValueError, match=message):
        model.fit(**batches(2), callbacks=[RedrawFeatures(2)])


def test_features_that_train_or_are_frozen_are_left_as_they_are():
    layers = [small_attention(), trained(), frozen()]
    model = build_model(layers, optimizer=keras.optimizers.SGD(0.0))
    matrices = [layer.projection_matrix.numpy() for layer in layers]
    model.fit(**batches(2), callbacks=[RedrawFeatures(1)])
    changed = [
        (layer.projection_matrix.numpy() != matrix).any()
        for layer, matrix in zip(layers, matrices)
    ]
    assert changed == [True, False, False]
    assert [int(layer.redraw_count) for layer in layers] == [2, 0, 0]


def test_a_model_without_optimizer_raises():
    model = build_model(optimizer=None)
    with pytest.raises(ValueError, match="compile the model with one"):
        model.fit(**batches(1), callbacks=[RedrawFeatures(2)])


class StepsItsOwnOptimizer(keras.Sequential):
    def train_step(self, data):
        return {"loss": tf.zeros(())}


def test_an_optimizer_that_model_optimizer_does_not_name_warns_once():
    model = StepsItsOwnOptimizer(build_model().layers)
    model.compile("sgd", "mse", run_eagerly=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**batches(4), epochs=3, callbacks=[RedrawFeatures(2)])
    (message,) = [str(w.message) for w in caught if "RedrawFeatures" in str(w.message)]
    assert "did not move in 4 batches" in message


@pytest.mark.parametrize(
    ("num_batches", "iterations", "make_optimizer"),
    [
        (4, 2, lambda sgd: keras.optimizers.SGD(0.01, gradient_accumulation_steps=6)),
        (6, 0, lambda sgd: keras.optimizers.LossScaleOptimizer(sgd, 2.0**127)),
    ],
)
def test_epochs_without_a_step_that_is_due_do_not_warn(
    num_batches, iterations, make_optimizer
):
    model = build_model(optimizer=make_optimizer(keras.optimizers.SGD(0.01)))
    data = batches(num_batches)
    data["y"] *= 1e12  # so that scaled losses overflow, and their steps are skipped
    # the first epoch ends without a step, and warnings are errors
    model.fit(**data, epochs=3, callbacks=[RedrawFeatures(2)])
    assert int(model.optimizer.iterations) == iterations
