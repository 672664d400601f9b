"""PerformerLM(recompute=...): the numbers of plain training, from less memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, RedrawFeatures
from keras_performer.models.token_training import WithTargets

RANDOM = np.random.default_rng(0)
IDS, TARGETS = RANDOM.integers(0, 11, (2, 4, 46))
WEIGHTS = RANDOM.uniform(0, 2, IDS.shape)
MODES = ("block", "network")
# chunks of 6 tokens or 7: 46 leaves a rest of 4, 42 none, and 5 are a single chunk
LENGTHS = (46, 42, 5)


def small_model(recompute=None, metrics=("accuracy",), loss=None, **changes):
    keras.utils.set_random_seed(3)
    options = dict(num_layers=2, num_heads=2, hidden_dim=8, num_random_features=6)
    options.update(chunk_size=4, seed=1, recompute=recompute)
    model = PerformerLM(11, 48, **{**options, **changes})
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics))
    return model


def loss_and_gradients(model, ids=IDS, targets=TARGETS, sample_weight=None):
    """Of a training step as Keras takes it."""
    with tf.GradientTape() as tape:
        x = WithTargets(ids, targets) if model.recompute else ids
        x = tf.nest.map_structure(tf.convert_to_tensor, x)
        outputs = model(x, training=True)
        loss = model.compute_loss(None, targets, outputs, sample_weight)
    gradients = tape.gradient(loss, model.trainable_weights)
    return loss, [tf.convert_to_tensor(g) for g in gradients]


def assert_alike(results, expected, tolerance=1e-5):
    assert float(results[0]) == pytest.approx(float(expected[0]), rel=tolerance)
    for result, wanted in zip(results[1], expected[1], strict=True):
        limit = tolerance * max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(result, wanted, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize("feature_map", ["softmax", "relu"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "recompute, causal", [("block", True), ("network", True), ("block", False)]
)
def test_gradients_are_those_of_plain_training(recompute, causal, length, feature_map):
    keras.config.set_floatx("float64")
    options = dict(causal=causal, feature_map=feature_map, dtype="float64")
    data = IDS[:, :length], TARGETS[:, :length]
    expected = loss_and_gradients(small_model(**options), *data)
    results = loss_and_gradients(small_model(recompute, **options), *data)
    assert_alike(results, expected, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("recompute", MODES)
def test_fit_is_plain_keras(recompute, jit_compile):
    """Losses, metrics, redraws, evaluation and predictions, compiled or not."""

    def run(recompute):
        model = small_model(recompute)
        model.jit_compile = jit_compile
        data = dict(x=IDS, y=TARGETS, batch_size=2, verbose=0)
        history = model.fit(
            epochs=3,
            shuffle=False,
            validation_data=(IDS[:2], TARGETS[:2]),
            sample_weight=WEIGHTS,
            callbacks=[RedrawFeatures(2)],
            **data,
        )
        count = int(model.blocks[0].attention.redraw_count.numpy())
        assert count == 3
        evaluated = model.evaluate(return_dict=True, **data)
        predicted = model.predict(IDS[:1], verbose=0)
        on_batch = model.train_on_batch(IDS, TARGETS, return_dict=True)
        return {**history.history, **evaluated, **on_batch}, predicted

    (results, predicted), (expected, wanted) = run(recompute), run(None)
    assert set(results) == set(expected)
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(results)
    for name, values in expected.items():
        np.testing.assert_allclose(results[name], values, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(predicted, wanted, atol=1e-4)


@pytest.mark.parametrize(
    "recompute, causal", [*((m, True) for m in MODES), ("block", False)]
)
def test_a_chunk_that_is_computed_again_drops_the_same(recompute, causal):
    """With dropout the gradient is the slope of the loss, seeds being equal."""
    keras.config.set_floatx("float64")
    model = small_model(recompute, dropout=0.3, causal=causal, dtype="float64")
    weights = {id(w) for w in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    start = [v.numpy() for v in seeds]
    assert len(seeds) == 5  # of the embedding, and two of each block

    def again(function):
        for seed, value in zip(seeds, start):
            seed.assign(value)
        return function(model)

    _, gradients = again(loss_and_gradients)
    moved = [v.numpy() for v in seeds]
    assert all((a != b).any() for a, b in zip(start, moved))
    directions = [RANDOM.standard_normal(g.shape) for g in gradients]
    losses = []
    for step in (1e-6, -2e-6):
        for weight, direction in zip(model.trainable_weights, directions):
            weight.assign_add(step * direction)
        losses.append(float(again(loss_and_gradients)[0]))
    slope = (losses[0] - losses[1]) / 2e-6
    expected = sum(np.sum(g * d) for g, d in zip(gradients, directions))
    assert slope == pytest.approx(expected, rel=1e-5)
    # other seeds, other values dropped
    assert float(loss_and_gradients(model)[0]) != pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_a_custom_loop_may_call_the_model(causal):
    """`recompute="block"` acts there too, and knows padding."""
    mask = np.arange(46) < np.array([[46], [9], [30], [1]])

    def outputs_and_gradients(model):
        with tf.GradientTape() as tape:
            logits = model(IDS, mask=mask, training=True)
            loss = tf.reduce_sum((logits * mask[..., None]) ** 2)
        gradients = tape.gradient(loss, model.trainable_weights)
        return loss, [logits * mask[..., None], *map(tf.convert_to_tensor, gradients)]

    expected = outputs_and_gradients(small_model(causal=causal))
    assert_alike(outputs_and_gradients(small_model("block", causal=causal)), expected)


@pytest.mark.parametrize("recompute", MODES)
def test_bfloat16_is_as_far_from_float32_as_without(recompute):
    exact = loss_and_gradients(small_model())[1]

    def distance(recompute):
        gradients = loss_and_gradients(small_model(recompute, dtype="mixed_bfloat16"))
        return [
            np.linalg.norm(g - e) / np.linalg.norm(e)
            for g, e in zip(gradients[1], exact)
            if np.abs(e).max() > 1e-4
        ]

    plain, chunked = distance(None), distance(recompute)
    assert 1e-3 < np.median(plain) < 0.1
    assert np.median(chunked) < 1.2 * np.median(plain)
    assert np.max(chunked) < 1.2 * np.max(plain)


@pytest.mark.parametrize("loss", ["function", "own"])
def test_losses_of_other_kinds(loss):
    def squared(y_true, y_pred):
        return keras.ops.mean((y_pred - keras.ops.one_hot(y_true, 11)) ** 2, -1)

    class Squared(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return squared(tf.cast(y_true, tf.int32), y_pred)

    def to_ids(y_true, y_pred):
        return squared(tf.cast(y_true, tf.int32), y_pred)

    loss = to_ids if loss == "function" else Squared(reduction="sum")
    metrics = [keras.metrics.MeanMetricWrapper(to_ids, name="squared")]
    expected = loss_and_gradients(small_model(loss=loss))
    model = small_model("network", metrics, loss)
    assert_alike(loss_and_gradients(model), expected)
    history = model.fit(IDS, TARGETS, verbose=0, batch_size=4).history
    mean = float(expected[0]) / (1 if loss is to_ids else IDS.size)
    assert history["squared"] == [pytest.approx(mean, rel=1e-5)]


@pytest.mark.parametrize(
    "message, compiled",
    [
        ("metrics must be means over tokens", dict(metrics=[keras.metrics.AUC()])),
        ("weighted_metrics cannot be had", dict(weighted_metrics=["accuracy"])),
        ("loss_weights cannot be had", dict(loss_weights=2.0)),
        ("loss must have a value for each token", dict(loss=lambda y, p: p[:, 0, 0])),
        ("loss must be a keras.losses.Loss", dict(loss=["mse"])),
    ],
)
def test_what_cannot_be_had_raises(message, compiled):
    model = small_model("network")
    model.compile("sgd", **{"loss": "mse", **compiled})
    with pytest.raises(ValueError, match=message):
        model.fit(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize(
    "message, options",
    [
        ('must be None, "block" or "network". Received', dict(recompute="blocks")),
        ("needs causal=True", dict(recompute="network", causal=False)),
        ("leave one out", dict(recompute="block", exact_below=4)),
    ],
)
def test_bad_arguments_raise(message, options):
    with pytest.raises(ValueError, match=message):
        small_model(**options)


def test_lengths_must_be_known():
    data = tf.data.Dataset.from_generator(
        lambda: [(IDS, TARGETS)],
        output_signature=(tf.TensorSpec((4, None), tf.int32),) * 2,
    )
    with pytest.raises(ValueError, match="known length. Received: .*4, None"):
        small_model("network").fit(
            data.repeat(), steps_per_epoch=1, verbose=0, shuffle=False
        )


@pytest.mark.parametrize("recompute", MODES)
def test_a_saved_model_recomputes(recompute, tmp_path):
    model = small_model(recompute)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.recompute == recompute
    assert_alike(loss_and_gradients(loaded), loss_and_gradients(model), 1e-6)
