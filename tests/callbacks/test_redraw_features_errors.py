"""RedrawFeatures says in words if it cannot redraw."""

import warnings

import keras
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, RedrawFeatures, feature_maps
from tests.callbacks.test_redraw_features import batches, build_model


@pytest.mark.parametrize("has_attention", [False, True])
def test_a_model_without_random_features_raises(has_attention):
    options = dict(feature_map="relu", num_random_features=None)
    layers = [PerformerAttention(2, 3, **options)] if has_attention else []
    model = keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="at least one PerformerAttention"):
        model.fit(**batches(1), callbacks=[RedrawFeatures(2)])


class Trained(feature_maps.SoftmaxFeatures):
    trainable = True


@pytest.mark.parametrize("num_drawn", [0, 1])
def test_features_that_train_are_left_as_they_are(num_drawn):
    feature_map = ["softmax"] * num_drawn + [Trained()]
    layers = [
        PerformerAttention(2, 3, num_random_features=8, feature_map=one)
        for one in feature_map
    ]
    model = keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    matrices = [layer.projection_matrix.numpy() for layer in layers]
    if not num_drawn:
        with pytest.raises(ValueError, match="random features which do not train"):
            model.fit(**batches(1), callbacks=[RedrawFeatures(1)])
        return
    model.fit(**batches(2), callbacks=[RedrawFeatures(1)])
    changed = [
        (layer.projection_matrix.numpy() != matrix).any()
        for layer, matrix in zip(layers, matrices)
    ]
    assert changed == [True, False]
    assert [int(layer.redraw_count) for layer in layers] == [2, 0]


@pytest.mark.parametrize("every_n_steps", [0, 2.5, None])
def test_every_n_steps_is_checked(every_n_steps):
    with pytest.raises(ValueError, match="every_n_steps must be a positive int"):
        RedrawFeatures(every_n_steps)


def test_a_model_without_optimizer_raises():
    model = build_model(optimizer=None)
    with pytest.raises(ValueError, match="compile the model with one"):
        model.fit(**batches(1), callbacks=[RedrawFeatures(2)])


def test_missing_redraws_of_a_model_that_is_not_built_raise():
    model = keras.Sequential([PerformerAttention(2, 3, num_random_features=8)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.optimizer.iterations.assign(7)
    with pytest.raises(ValueError, match="After 7 steps .* build the model first"):
        model.fit(**batches(1), callbacks=[RedrawFeatures(2)])


class StepsItsOwnOptimizer(keras.Sequential):
    def compile(self, optimizer):
        super().compile(run_eagerly=True)
        self.own_optimizer = optimizer

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.own_optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


def test_an_optimizer_that_model_optimizer_does_not_name_warns_once():
    model = StepsItsOwnOptimizer(build_model().layers)
    model.compile(keras.optimizers.SGD(0.01))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**batches(4), epochs=3, callbacks=[RedrawFeatures(2)])
    messages = [str(w.message) for w in caught if "RedrawFeatures" in str(w.message)]
    assert len(messages) == 1
    assert "did not move in 4 batches" in messages[0]
    assert int(model.own_optimizer.iterations) == 12


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_model_in_which_nothing_trains_is_told_so():
    model = build_model()
    model.trainable = False
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.warns(UserWarning, match="did not move in 4 .* Nothing in the model"):
        model.fit(**batches(4), callbacks=[RedrawFeatures(2)])


def accumulating():
    return keras.optimizers.SGD(0.01, gradient_accumulation_steps=6)


def overflowing():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 2.0**127)


@pytest.mark.parametrize(
    ("num_batches", "iterations", "make_optimizer"),
    [(4, 2, accumulating), (6, 0, overflowing)],
)
def test_epochs_without_a_step_that_is_due_do_not_warn(
    num_batches, iterations, make_optimizer
):
    model = build_model(optimizer=make_optimizer())
    data = batches(num_batches)
    data["y"] *= 1e12  # so that scaled losses overflow, and their steps are skipped
    # the first epoch ends without a step, and warnings are errors
    model.fit(**data, epochs=3, callbacks=[RedrawFeatures(2)])
    assert int(model.optimizer.iterations) == iterations


@pytest.mark.parametrize("verbose", ["loud", 2, None])
def test_verbose_is_checked(verbose):
    with pytest.raises(ValueError, match="verbose must be 0 or 1. Received: verbose="):
        RedrawFeatures(verbose=verbose)
