"""The example `own_feature_map`, small."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from examples import own_feature_map
from examples.own_feature_map import PowerFeatures
from keras_performer import feature_maps, ops


@pytest.mark.parametrize("power", [1, 2, 3])
def test_weights_are_products_of_powers(power):
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 1, 5, 1, 4)).astype("float32")
    features = PowerFeatures(power)
    matrix = features.draw(6, 4, seed=(0, 1))
    scores = ops.attention_scores(query, key, features.kernel(matrix))
    phi_q, phi_k = (
        np.maximum(x[0, :, 0] @ matrix.numpy().T / 4**0.25, 0) ** power + 1e-3
        for x in (query, key)
    )
    weights = phi_q @ phi_k.T
    expected = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-5)


def test_the_config_holds_every_argument():
    features = PowerFeatures(3, trainable=True)
    again = feature_maps.deserialize(feature_maps.serialize(features))
    assert again == features != PowerFeatures(3)


@pytest.mark.parametrize("trainable", [False, True])
def test_the_matrix_trains_if_asked(trainable):
    attention = own_feature_map.performer(PowerFeatures(2, trainable))
    model = own_feature_map.make_model(attention)
    inputs, answers = own_feature_map.dictionaries(8, np.random.default_rng(0))
    before = tf.convert_to_tensor(attention.projection_matrix)
    model.run_eagerly = True  # one step is not worth tracing
    model.train_on_batch(inputs, answers)
    change = float(np.abs(attention.projection_matrix - before).max())
    # Adam's first step moves what it trains by nearly the learning rate, 1e-2
    assert 5e-3 < change < 1.1e-2 if trainable else change == 0.0


def test_answers_stand_in_the_dictionary():
    inputs, answers = own_feature_map.dictionaries(3, np.random.default_rng(0))
    for questions, first, second, answer in zip(*inputs, answers):
        assert len(set(first.tolist())) == own_feature_map.PAIRS
        meaning = dict(zip(first.tolist(), second.tolist()))
        assert [meaning[word] for word in questions.tolist()] == answer.tolist()


@pytest.mark.slow
def test_it_trains_loads_and_draws(monkeypatch, capsys, eagerly):
    label = "relu^2, W trained"
    few = {label: own_feature_map.ROWS[label]}
    monkeypatch.setattr(own_feature_map, "ROWS", few)
    monkeypatch.setattr(own_feature_map, "EVALUATIONS", 2)
    accuracies, is_same = own_feature_map.main(steps=2, output_dir="out")
    assert is_same and len(accuracies[label]) == 2
    assert f"{label:20}{accuracies[label][-1]:.3f}" in capsys.readouterr().out
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
