"""PerformerLM(...) without options: the window and the gate of causal models."""

import math

import keras
import numpy as np
import pytest

from keras_performer import PerformerAttention, PerformerLM, generate
from keras_performer.layers import ExactAttention
from tests.layers.inputs import plain_options

SIZES = dict(num_layers=2, num_heads=2, hidden_dim=8, seed=1)
# longer than the window
IDS = np.random.default_rng(0).integers(0, 11, (2, 90))
PLAIN = plain_options()


def options_of(model):
    """The window, the gate and its biases, by config."""
    config = model.get_config()
    names = "exact_window", "forget_gate", "forget_gate_bias"
    return tuple(config.get(name) for name in names)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (64, True, (2.0, 7.0))),
        ({"feature_map": "taylor"}, (64, True, (2.0, 7.0))),
        # exact weights stand beside estimates of softmax only
        ({"feature_map": "relu"}, (None, True, (2.0, 7.0))),
        ({"causal": False}, (None, False, (2.0, 7.0))),
        ({"causal": False, "exact_window": 5}, (5, False, (2.0, 7.0))),
        (PLAIN, (None, False, (2.0, 7.0))),
        ({"exact_window": 5}, (5, True, (2.0, 7.0))),
        ({"forget_gate_bias": (1.0, 3.0)}, (64, True, (1.0, 3.0))),
        ({"max_length": 100}, (64, True, (2.0, 7.0))),
        ({"max_length": 5000}, (64, True, (2.0, math.log(20_000)))),
        ({"attention": "exact"}, (None, True, (2.0, 7.0))),
        ({"attention": "exact", "forget_gate": False}, (None, False, (2.0, 7.0))),
        ({"attention": ["exact", "performer"]}, (64, True, (2.0, 7.0))),
        ({"attention": "none", "max_length": 90}, (None, None, None)),
    ],
)
def test_what_a_model_has_unless_it_is_told(given, wanted):
    model = PerformerLM(11, **SIZES, **given)
    assert options_of(model) == wanted
    for block in model.blocks:
        if isinstance(block.attention, PerformerAttention):
            assert block.attention.exact_window == wanted[0]
        if isinstance(block.attention, (PerformerAttention, ExactAttention)):
            assert block.attention.forget_gate == wanted[1]
    again = PerformerLM.from_config(model.get_config())
    assert again.get_config() == model.get_config()


def test_a_layer_that_is_passed_in_stays_as_it_is():
    attention = PerformerAttention(2, 4, causal=True)
    model = PerformerLM(11, **SIZES, attention=attention)
    for block in model.blocks:
        assert block.attention.exact_window is None
        assert not block.attention.forget_gate


def test_the_numbers_are_those_of_the_layer_with_its_options():
    options = dict(exact_window=64, forget_gate=True, num_random_features=16)
    layer = PerformerAttention(2, 4, causal=True, **options)
    model = PerformerLM(11, **SIZES, num_random_features=16)
    other = PerformerLM(11, **SIZES, attention=layer)
    other.set_weights(model.get_weights())
    np.testing.assert_allclose(model(IDS), other(IDS), atol=1e-6)


@pytest.mark.parametrize("attention", ["performer", "exact", ["performer", "exact"]])
def test_a_config_without_the_options_is_older_than_the_defaults(attention):
    config = PerformerLM(11, **SIZES, attention=attention).get_config()
    for name in ("exact_window", "forget_gate", "forget_gate_bias"):
        config.pop(name, None)
    older = PerformerLM.from_config(config)
    for block in older.blocks:
        assert not block.attention.forget_gate
        assert getattr(block.attention, "exact_window", None) is None
    weights = [w.path for w in older.weights]
    assert not [path for path in weights if "forget_gate" in path or "gain" in path]


def test_training_saving_and_generating_beyond_the_window(tmp_path):
    model = PerformerLM(11, **SIZES, num_random_features=16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=False)
    before = model.get_weights()
    model.fit(IDS, IDS, verbose=0)
    for weight, old in zip(model.weights, before, strict=True):
        if weight.trainable:
            assert np.abs(weight - old).max() > 1e-7, weight.path
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(loaded(IDS), model(IDS))

    tokens = np.asarray(generate(model, IDS[:, :60], 80, temperature=0, verbose=0))
    likeliest = np.argmax(model(tokens[:, :-1]), -1)
    np.testing.assert_array_equal(likeliest[:, 59:], tokens[:, 60:])
    state, logits = model.get_initial_state(2), []
    for start, end in ((0, 70), (70, 71), (71, 90)):
        piece, state = model(IDS[:, start:end], state=state, return_state=True)
        logits.append(piece)
    np.testing.assert_allclose(np.concatenate(logits, 1), model(IDS), atol=1e-5)
