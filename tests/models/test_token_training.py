"""Losses and metrics of chunks equal Keras' results for the whole sequence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.recompute import passes
from tests.models.token_models import IDS, MODES, TARGETS, WEIGHTS, small_model


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    """Cuts 11 tokens into chunks of 4, 4 and 3."""
    monkeypatch.setattr(passes, "_chunk_tokens", lambda model, length: 4)


ONE_HOT = np.eye(11, dtype="float32")[TARGETS]
CrossEntropy = keras.losses.SparseCategoricalCrossentropy


def squared(y_true, y_pred):
    """Loss between the target, which Keras casts to float, and an output."""
    return 0.01 * tf.square(y_true - y_pred[..., 0])


class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return squared(y_true, y_pred)


LOSSES = {
    "own": dict(loss=Squared(reduction="sum")),
    "name": dict(loss="mse", y=ONE_HOT),
    "ignored_class": dict(loss=CrossEntropy(from_logits=True, ignore_class=3)),
    "ignored_class_weighted": dict(
        loss=CrossEntropy(True, 3, reduction="mean_with_sample_weight"),
        sample_weight=WEIGHTS,
    ),
    "smoothed": dict(
        loss=keras.losses.CategoricalCrossentropy(True, label_smoothing=0.1), y=ONE_HOT
    ),
    "bfloat16": dict(loss=CrossEntropy(from_logits=True, dtype="bfloat16")),
    "mean_with_sample_weight": dict(
        loss=CrossEntropy(from_logits=True, reduction="mean_with_sample_weight"),
        sample_weight=WEIGHTS,
    ),
    "one_token": dict(loss=None, metrics=["accuracy"], x=IDS[:, :1], y=TARGETS[:, :1]),
}


def losses(recompute, loss, metrics=(), x=IDS, y=TARGETS, sample_weight=None):
    """Returns losses of `fit` and `evaluate` for batches of 3 sequences and 1."""
    # without attention, as losses only see the outputs of chunks
    options = dict(attention="none", num_layers=1)
    model = small_model(recompute, loss=loss, metrics=list(metrics), **options)
    data = dict(x=x, y=y, sample_weight=sample_weight, batch_size=3, verbose=0)
    history = model.fit(shuffle=False, **data).history
    evaluated = model.evaluate(return_dict=True, **data)
    return {
        **{k: v[0] for k, v in history.items()},
        "evaluated": list(evaluated.values()),
    }


# The modes take turns, as both pass chunks of outputs to the same losses.
@pytest.mark.slow
@pytest.mark.parametrize("name, recompute", list(zip(LOSSES, 4 * MODES)))
def test_losses(name, recompute):
    results, expected = (losses(r, **LOSSES[name]) for r in (recompute, None))
    assert results == {k: pytest.approx(v, rel=1e-5) for k, v in expected.items()}


def test_metrics():
    """Tests also equal names, the name of the loss, and losses as metrics."""

    def metrics():
        def mean(name, function):
            return keras.metrics.MeanMetricWrapper(
                lambda y_true, y_pred: function(y_pred, -1), name
            )

        return [
            "accuracy",
            keras.metrics.SparseTopKCategoricalAccuracy(3),
            mean("loss", tf.reduce_mean),
            mean("twice", tf.reduce_max),
            mean("twice", tf.reduce_min),
            CrossEntropy(from_logits=True, reduction="sum", name="sum"),
            CrossEntropy(from_logits=True, name="mean"),
        ]

    results, expected = (losses(r, None, metrics()) for r in ("network", None))
    assert len(results) == 8
    assert results == {k: pytest.approx(v, rel=1e-5) for k, v in expected.items()}


class WithoutFirst(keras.metrics.MeanMetricWrapper):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true[:, 1:], y_pred[:, 1:])


class Tenfold(CrossEntropy):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return 10 * super().__call__(y_true, y_pred, sample_weight)


@pytest.mark.parametrize(
    "message, compiled",
    [
        ("Tenfold, with its own __call__", dict(loss=Tenfold(from_logits=True))),
        ("without its own __call__", dict(metrics=[Tenfold(from_logits=True)])),
        ("metrics must be means over tokens", dict(metrics=[keras.metrics.AUC()])),
        ("with unchanged update_state", dict(metrics=[WithoutFirst(squared)])),
        ("loss without ignore_class", dict(metrics=[CrossEntropy(ignore_class=3)])),
        ("does not support weighted_metrics", dict(weighted_metrics=["accuracy"])),
        ("does not support loss_weights", dict(loss_weights=2.0)),
        ("loss must have a value for each token", dict(loss=lambda y, p: p[:, 0, 0])),
        ("loss must be a keras.losses.Loss", dict(loss=["mse"])),
    ],
)
def test_what_cannot_be_had_raises(message, compiled):
    model = small_model("network", attention="none", num_layers=1)
    model.compile("sgd", **{"loss": "mse", **compiled}, run_eagerly=True)
    with pytest.raises(ValueError, match=message):
        model.fit(IDS, TARGETS, verbose=0)


def test_targets_are_one_tensor():
    model = small_model("network", attention="none", num_layers=1)
    for targets in (None, [TARGETS]):
        with pytest.raises(ValueError, match="y must be one tensor of targets. Rec"):
            model.fit(IDS, targets, verbose=0)
