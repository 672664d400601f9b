"""KerasHub models with linear attention: saving, export, training, generation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, convert_to_softmax
from keras_performer.conversion.cached import CachedPerformerAttention
from keras_performer.layers import PerformerAttention
from keras_performer.layers.keras_privates import all_layers
from tests.keras_hub import models
from tests.keras_hub.models import LENGTH, VOCABULARY
from tests.layers.inputs import normal

# KerasHub's tasks compile themselves in a way that Keras cannot repeat.
pytestmark = pytest.mark.filterwarnings("ignore:`compile:UserWarning")

# models, with their number of attention layers
MODELS = {
    "bert": (models.bert, 2),
    "albert": (models.albert, 1),
    "gpt2": (models.gpt2, 2),
    "bert_classifier": (models.bert_classifier, 2),
    "gpt2_generator": (models.gpt2_generator, 2),
}
CLOSE = dict(rtol=1e-4, atol=1e-4)


def trained(make):
    keras.utils.set_random_seed(0)
    return models.with_random_weights(make())


def first_output(model, x):
    return keras.tree.flatten(model(x))[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_window_over_everything_changes_nothing(name):
    make, number = MODELS[name]
    model = trained(make)
    x = models.data_for(model)
    expected = first_output(model, x)
    performer, report = convert_to_performer(model, exact_window=LENGTH)
    assert [row.became.removeprefix("Cached") for row in report.layers] == [
        "PerformerAttention"
    ] * number
    assert type(performer) is not keras.Model and isinstance(performer, type(model))
    np.testing.assert_allclose(first_output(performer, x), expected, **CLOSE)
    estimate, _ = convert_to_performer(model, exact_window=3, num_random_features=8)
    assert np.abs(first_output(estimate, x) - expected).max() > 1e-2
    softmax, _ = convert_to_softmax(estimate)
    np.testing.assert_allclose(first_output(softmax, x), expected, **CLOSE)


@pytest.mark.parametrize("name", ["bert_classifier", "gpt2_generator"])
def test_it_is_saved_exported_and_trained(name, tmp_path):
    model = trained(MODELS[name][0])
    x = models.data_for(model)
    performer, _ = convert_to_performer(model, exact_window=3, num_random_features=8)
    performer.compile(
        keras.optimizers.SGD(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    attention = [x for x in all_layers(performer) if isinstance(x, PerformerAttention)]
    before = [layer.query_dense.kernel.numpy() for layer in attention]
    targets = np.zeros(first_output(model, x).shape[:-1], int)
    history = performer.fit(x, targets, epochs=4, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert history[-1] < history[0]
    for layer, kernel in zip(attention, before, strict=True):
        assert np.abs(layer.query_dense.kernel.numpy() - kernel).max() > 1e-6
    expected = performer(x)
    performer.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded).__name__ == type(model).__name__
    np.testing.assert_allclose(loaded(x), expected, **CLOSE)
    performer.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve({k: tf.constant(v, "int32") for k, v in x.items()})
    np.testing.assert_allclose(served, expected, **CLOSE)


@pytest.mark.parametrize("exact_window", [None, 3])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_it_generates_what_a_whole_call_says(exact_window, jit_compile):
    model = trained(models.gpt2_generator)
    performer, _ = convert_to_performer(
        model, exact_window=exact_window, num_random_features=8, seed=0
    )
    performer.compile(sampler="greedy", jit_compile=jit_compile)
    tokens = np.random.default_rng(2).integers(VOCABULARY, size=(3, LENGTH))
    known = np.tile(np.arange(LENGTH) < 4, (3, 1))
    prompt = {"token_ids": tokens, "padding_mask": known}
    generated = performer.generate(prompt, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(generated[:, :4], tokens[:, :4])
    whole = performer({"token_ids": generated, "padding_mask": np.ones_like(known)})
    np.testing.assert_array_equal(generated[:, 4:], np.argmax(whole, -1)[:, 3:-1])
    # with a cache from the start, token by token and several at once
    cache = tf.zeros((3, 2, 2, LENGTH, 2, 4))
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 7), (7, LENGTH)):
        logits, _, cache = performer.call_with_cache(
            generated[:, start:end], cache, start
        )
        parts.append(logits)
    np.testing.assert_allclose(tf.concat(parts, 1), whole, **CLOSE)


def test_generators_are_calibrated():
    model = trained(models.gpt2_generator)
    x = models.data_for(model)
    performer, _ = convert_to_performer(model, exact_window=3, seed=0)
    fitted, report = calibrate(performer, x, verbose=0)
    assert report.left_out == {}
    for row in report.layers:
        assert row.after < row.before
    assert any(isinstance(x, CachedPerformerAttention) for x in all_layers(fitted))
    exact, _ = convert_to_softmax(fitted)
    np.testing.assert_allclose(exact(x), model(x), rtol=1e-3, atol=1e-3)


def test_attention_to_an_encoder_has_no_window():
    model = trained(models.layers_of_hub)
    x = [normal((2, 9, 8)), normal((2, 7, 8), seed=1)]
    performer, report = convert_to_performer(model, exact_window=20)
    became = {row.path.split("/")[-1]: row.became for row in report.layers}
    assert became == {
        "self_attention_layer": "PerformerAttention",
        "self_attention": "CachedPerformerAttention",
        "cross_attention": "",
    }
    assert "convert it with exact_window=None" in report.layers[-1].note
    np.testing.assert_allclose(performer(x), model(x), **CLOSE)
    performer, report = convert_to_performer(model, exact_window=None)
    assert report.layers[-1].became == "CachedPerformerAttention"
    exact, _ = convert_to_softmax(performer)
    np.testing.assert_allclose(exact(x), model(x), **CLOSE)
