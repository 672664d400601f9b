"""RedrawFeatures raises clear errors if it cannot redraw."""

import warnings

import keras
import pytest
import tensorflow as tf

from keras_performer import RedrawFeatures, feature_maps
from tests.callbacks.test_redraw_features import batches, build_model, small_attention


class Trained(feature_maps.SoftmaxFeatures):
    trainable = True


def trained():
    return small_attention(feature_map=Trained())


class Unbuilt(keras.Model):
    """Model with a layer that no batch builds."""

    def __init__(self):
        super().__init__()
        self.unused, self.dense = small_attention(), keras.layers.Dense(1)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


def relu():
    return small_attention(feature_map="relu", num_random_features=None)


@pytest.mark.parametrize(
    "make, steps, message",
    [
        (lambda: build_model([]), 0, "at least one PerformerAttention"),
        (lambda: build_model([relu()]), 0, "at least one PerformerAttention"),
        (lambda: build_model([trained()]), 0, "random features which do not train"),
        (Unbuilt, 0, "redraw_features needs a built layer"),
        (lambda: keras.Sequential([small_attention()]), 7, "After 7 .* build the mod"),
    ],
)
def test_a_model_without_features_to_redraw_raises(make, steps, message):
    model = make()
    model.compile("sgd", "mse", run_eagerly=True)
    model.optimizer.iterations.assign(steps)
    with pytest.raises(ValueError, match=message):
        model.fit(**batches(2), callbacks=[RedrawFeatures(2)])


def test_features_that_train_are_left_as_they_are():
    layers = [small_attention(), trained()]
    model = build_model(layers, optimizer=keras.optimizers.SGD(0.0))
    matrices = [layer.projection_matrix.numpy() for layer in layers]
    model.fit(**batches(2), callbacks=[RedrawFeatures(1)])
    changed = [
        (layer.projection_matrix.numpy() != matrix).any()
        for layer, matrix in zip(layers, matrices)
    ]
    assert changed == [True, False]
    assert [int(layer.redraw_count) for layer in layers] == [2, 0]


def test_arguments_are_checked():
    for every_n_steps in (0, 2.5, None):
        with pytest.raises(ValueError, match="every_n_steps must be a positive int"):
            RedrawFeatures(every_n_steps)
    for verbose in ("loud", 2, None):
        with pytest.raises(ValueError, match="must be 0 or 1. Received: verbose="):
            RedrawFeatures(verbose=verbose)


def test_a_model_without_optimizer_raises():
    model = build_model(optimizer=None)
    with pytest.raises(ValueError, match="compile the model with one"):
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
    (message,) = [str(w.message) for w in caught if "RedrawFeatures" in str(w.message)]
    assert "did not move in 4 batches" in message
    assert int(model.own_optimizer.iterations) == 12


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_model_in_which_nothing_trains_is_told_so():
    model = build_model()
    model.trainable = False
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.warns(UserWarning, match="did not move in 4 .* Nothing in the model"):
        model.fit(**batches(4), callbacks=[RedrawFeatures(2)])


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
