"""RedrawFeatures counts optimizer steps, whatever makes up a step."""

import functools

import keras
import numpy as np
import pytest

from keras_performer import PerformerAttention, RedrawFeatures
from tests.layers.inputs import normal

X, Y = normal((4, 6, 5)), normal((4, 6, 1), seed=1)


def attention_of(model):
    return next(x for x in model._flatten_layers() if isinstance(x, PerformerAttention))


def build_model(dtype=None, num_layers=1, **options):
    keras.utils.set_random_seed(7)
    layers = [
        PerformerAttention(
            2, 3, num_random_features=8, feature_map="favor+", seed=3 + i, dtype=dtype
        )
        for i in range(num_layers)
    ]
    model = keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(1)])
    # eager: for a few steps, tracing takes longer than training
    defaults = dict(optimizer=keras.optimizers.Adam(0.01), run_eagerly=True)
    if not options.get("run_eagerly", True):
        defaults["jit_compile"] = False
    model.compile(loss="mse", **{**defaults, **options})
    return model


def batches(number):
    """Makes that many batches of 4, all different."""
    x, y = normal((4 * number, 6, 5), seed=2), normal((4 * number, 6, 1), seed=3)
    return dict(x=x, y=y, batch_size=4, shuffle=False, verbose=0)


def matrix_after(num_redraws):
    layer = attention_of(build_model())
    if num_redraws:
        layer.redraw_features(num_redraws)
    return layer.projection_matrix.numpy()


class Record(keras.callbacks.Callback):
    """Notes the loss, the number of redraws and the matrix of every optimizer step."""

    def __init__(self):
        super().__init__()
        self.steps = {}

    def on_train_batch_end(self, batch, logs=None):
        layer = attention_of(self.model)
        step = int(self.model.optimizer.iterations)
        self.steps[step] = (
            logs["loss"],
            int(layer.redraw_count),
            layer.projection_matrix.numpy().tobytes(),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("steps_per_execution", "every_n_steps"), [(3, 5), (7, 2)])
def test_count_is_steps_over_n(steps_per_execution, every_n_steps):
    model = build_model(run_eagerly=False, steps_per_execution=steps_per_execution)
    callback = RedrawFeatures(every_n_steps)
    for epochs in (1, 2):  # the second fit goes on where the first one ended
        model.fit(**batches(20), epochs=epochs, callbacks=[callback])
        iterations = int(model.optimizer.iterations)
        assert iterations == (20 if epochs == 1 else 60)
        layer = attention_of(model)
        assert int(layer.redraw_count) == iterations // every_n_steps
        expected = matrix_after(iterations // every_n_steps)
        np.testing.assert_array_equal(layer.projection_matrix, expected)


def test_every_layer_is_redrawn_with_a_sequence_of_its_own():
    model = build_model(num_layers=2)
    model.fit(**batches(3), callbacks=[RedrawFeatures(3)])
    layers = model.layers[:2]
    assert [int(layer.redraw_count) for layer in layers] == [1, 1]
    one, other = (layer.projection_matrix.numpy() for layer in layers)
    assert np.abs(one - other).max() > 0.1


def test_redraws_happen_after_the_step_that_completes_n():
    record = Record()
    build_model().fit(**batches(7), callbacks=[RedrawFeatures(3), record])
    counts = [count for _, count, _ in record.steps.values()]
    assert counts == [0, 0, 1, 1, 1, 2, 2]


def test_gradient_accumulation_counts_updates():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    model = build_model(optimizer=optimizer)
    model.fit(**batches(14), callbacks=[RedrawFeatures(2)])
    assert int(optimizer.iterations) == 4
    assert int(attention_of(model).redraw_count) == 2


def test_loss_scaling_of_mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    model = build_model()
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.fit(**batches(14), callbacks=[RedrawFeatures(3)])
    iterations = int(model.optimizer.iterations)
    assert iterations > 6
    assert int(attention_of(model).redraw_count) == iterations // 3
    assert np.isfinite(model.evaluate(X, Y, verbose=0))


def test_features_are_no_variables_of_the_optimizer():
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    model = build_model(optimizer=optimizer)
    before = attention_of(model).projection_matrix.numpy()
    model.fit(**batches(3))
    np.testing.assert_array_equal(attention_of(model).projection_matrix, before)
    shapes = [v.shape for v in optimizer.variables]
    assert attention_of(model).projection_matrix.shape not in shapes
    # iterations, learning rate, and two moments of each trainable weight
    assert len(shapes) == 2 + 2 * len(model.trainable_variables)


def test_evaluation_and_prediction_never_redraw():
    model = build_model()
    callback = RedrawFeatures(1)
    model.evaluate(X, Y, verbose=0, callbacks=[callback])
    model.predict(X, verbose=0, callbacks=[callback])
    assert int(attention_of(model).redraw_count) == 0


def test_redraws_by_hand_stay_and_missing_ones_are_made_up_for():
    model = build_model()
    model.fit(**batches(4))
    assert int(attention_of(model).redraw_count) == 0
    record = Record()
    model.fit(**batches(2), callbacks=[RedrawFeatures(3), record])
    assert [count for _, count, _ in record.steps.values()] == [1, 2]
    attention_of(model).redraw_features(4)
    model.fit(**batches(3), callbacks=[RedrawFeatures(3)])
    assert int(attention_of(model).redraw_count) == 7


class RollBack(keras.callbacks.Callback):
    """Restores after the third epoch what it kept after the first."""

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


class Counts(keras.callbacks.Callback):
    """Notes the number of redraws after every step."""

    def on_train_begin(self, logs=None):
        self.counts = []

    def on_train_batch_end(self, batch, logs=None):
        self.counts.append(int(attention_of(self.model).redraw_count))


@pytest.mark.parametrize(
    ("of_optimizer", "last"), [(True, [2, 3, 3, 4]), (False, [2, 7, 7, 8])]
)
def test_redraws_go_on_from_what_is_restored_in_between(of_optimizer, last):
    """From the step that is restored; from that of the optimizer if it stays."""
    model, counts = build_model(), Counts()
    callbacks = [RedrawFeatures(2), counts, RollBack(of_optimizer)]
    model.fit(**batches(4), epochs=4, callbacks=callbacks)
    assert counts.counts == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, *last]
    expected = matrix_after(last[-1])
    np.testing.assert_array_equal(attention_of(model).projection_matrix, expected)


def test_a_layer_inside_other_layers_is_found():
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [PerformerAttention(2, 3, num_random_features=8)]

        def build(self, input_shape):
            self.parts[0].build(input_shape)

        def call(self, x):
            return x + self.parts[0](x)

    inner = keras.Sequential([keras.Input((6, 5)), Block()])
    model = keras.Sequential([keras.Input((6, 5)), inner, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(**batches(4), callbacks=[RedrawFeatures(2)])
    assert int(attention_of(model).redraw_count) == 2


def test_a_model_that_is_built_by_its_first_batch():
    layer = PerformerAttention(2, 3, num_random_features=8)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(**batches(5), callbacks=[RedrawFeatures(2)])
    assert int(layer.redraw_count) == 2


def test_a_layer_that_no_batch_builds_is_named():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.unused = PerformerAttention(2, 3, num_random_features=8)
            self.dense = keras.layers.Dense(1)

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return self.dense(x)

    model = Model()
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="redraw_features needs a built layer"):
        model.fit(**batches(2), callbacks=[RedrawFeatures(2)])


def test_a_loop_that_only_tells_of_the_end_of_batches():
    model = build_model()
    callback = RedrawFeatures(2)
    callback.set_model(model)
    counts = []
    for batch in range(5):
        model.optimizer.iterations.assign_add(1)
        callback.on_train_batch_end(batch)
        counts.append(int(attention_of(model).redraw_count))
    assert counts == [0, 1, 1, 2, 2]


def test_verbose_prints_each_redraw(capsys):
    model = build_model(num_layers=2)
    model.fit(**batches(2), callbacks=[RedrawFeatures(2)])
    assert capsys.readouterr().out == ""
    model.fit(**batches(2), callbacks=[RedrawFeatures(2, verbose=1)])
    lines = capsys.readouterr().out.split("\n")
    assert sum("Redrew" in line for line in lines) == 2
    for layer in model.layers[:2]:
        assert sum(f"features of {layer.path}." in line for line in lines) == 1


def test_config():
    callback = RedrawFeatures(every_n_steps=5, verbose=1)
    config = keras.saving.serialize_keras_object(callback)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == {"every_n_steps": 5, "verbose": 1}


class Stop(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """Ends training as a power cut would, after some batches of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 11:
            raise Stop


def same_batch(number):
    """Losses are then a function of the optimizer step alone.

    BackupAndRestore begins the interrupted epoch again, so batches would differ.
    """
    x, y = np.concatenate([X] * number), np.concatenate([Y] * number)
    return dict(x=x, y=y, batch_size=4, shuffle=False, verbose=0)


@functools.cache
def uninterrupted_steps():
    record = Record()
    model = build_model()
    model.fit(**same_batch(6), epochs=3, callbacks=[RedrawFeatures(3), record])
    return record.steps


@pytest.mark.parametrize(("save_freq", "redraw_first"), [("epoch", False), (3, True)])
def test_resumed_training_equals_uninterrupted_training(save_freq, redraw_first):
    def callbacks(*more):
        made = [
            RedrawFeatures(3),
            keras.callbacks.BackupAndRestore("backup", save_freq=save_freq),
        ]
        return [*(made if redraw_first else made[::-1]), *more]

    def fit(record, *more):
        model = build_model()
        model.fit(**same_batch(6), epochs=3, callbacks=callbacks(record, *more))

    interrupted, resumed, uninterrupted = Record(), Record(), uninterrupted_steps()
    with pytest.raises(Stop):
        fit(interrupted, Interrupt())
    fit(resumed)

    assert list(uninterrupted) == list(range(1, 19))
    first = min(resumed.steps)
    # it did resume, from the last save
    assert first == {"epoch": 7, 3: 10}[save_freq]
    assert list(resumed.steps) == list(range(first, first + 12))
    counts = {step: count for step, (_, count, _) in resumed.steps.items()}
    assert counts == {step: step // 3 for step in counts}
    # the mean over an epoch that Keras reports starts anew where training starts
    wanted, seen = map(batch_losses, (uninterrupted, resumed.steps))
    for step in set(seen) & set(wanted):
        assert seen[step] == pytest.approx(wanted[step], abs=1e-6), step
        assert resumed.steps[step][1:] == uninterrupted[step][1:]
    assert len(set(seen) & set(wanted)) >= 8


def batch_losses(steps):
    """Undoes the running mean over epochs of six batches."""
    losses, total, number = {}, 0.0, 0
    for step, (mean, *_) in steps.items():
        losses[step] = mean * (number + 1) - total
        total, number = mean * (number + 1), number + 1
        if number == 6:
            total, number = 0.0, 0
    return losses
