"""Saved models, files of other features, and what stays frozen in files and copies.

`test_contract.py` tests files of each layer, `tests/golden` files of earlier commits.
"""

import keras
import pytest
import tensorflow as tf

import keras_performer
from keras_performer import PerformerAttention, PerformerLM
from keras_performer.layers.keras_privates import all_layers
from tests.contract import relative_error
from tests.layers.inputs import language_model


def small(**options):
    layer = PerformerAttention(2, 4, **{"num_random_features": 8, **options})
    return keras.Sequential([keras.Input((None, 7)), layer])


def grid_model(**options):
    learned = {"position_shape": (4, 4), "position_embedding": "learned"}
    return language_model(**learned, **options)


def reversible(seed=0):
    keras.utils.set_random_seed(seed)
    attention = [PerformerAttention(2, 4, seed=seed) for _ in range(2)]
    start = keras.Input((None,))
    x = keras.layers.Embedding(11, 8)(start)
    return keras.Model(start, keras_performer.zoo.ReversibleBlock(attention, 16)(x))


@pytest.mark.parametrize("make", [language_model, grid_model, reversible])
def test_a_checkpoint_of_tensorflow_holds_lists_of_layers_and_weights(make):
    """Keras itself leaves lists out of a `tf.train.Checkpoint`."""
    model, other = make(), make(seed=7)
    path = tf.train.Checkpoint(model=model).save("checkpoint")
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    tokens = tf.constant([[3, 1, 4]])
    assert relative_error(other(tokens), model(tokens)) == 0


@pytest.mark.parametrize("number, message", [(10, "shape"), (None, "loaded|expected")])
def test_features_of_another_number_do_not_load(number, message):
    small(feature_map="relu", num_random_features=number).save_weights("m.weights.h5")
    with pytest.raises(ValueError, match=message):
        small(feature_map="relu").load_weights("m.weights.h5")


def test_a_model_says_that_features_of_another_number_do_not_load():
    """Keras comes to inner layers of a `PerformerLM` by two paths."""
    language_model(num_random_features=32).save_weights("m.weights.h5")
    model = language_model(num_random_features=16)
    with pytest.raises(ValueError, match="RandomProjection"):
        model.load_weights("m.weights.h5")
    other = language_model(attention="exact", forget_gate=True)
    other.save_weights("exact.weights.h5")  # without features
    model.load_weights("exact.weights.h5")
    kernels = [x.blocks[0].attention.query_dense.kernel for x in (model, other)]
    assert relative_error(*kernels) == 0


def made_again(model, way):
    if way == "clone":
        return keras.models.clone_model(model)
    if way == "json":
        return keras.models.model_from_json(model.to_json())
    model.save("model.keras")
    return keras.saving.load_model("model.keras")


def trained(model):
    weights = {id(x) for x in model.trainable_weights}
    return [id(x) in weights for x in model.weights]


@pytest.mark.parametrize("way", ["load", "clone", "json"])
def test_what_is_frozen_comes_back_frozen(way):
    """Tests whole layers of a model, and parts of a layer."""
    lm = language_model(max_length=8, num_layers=3, num_random_features=8)
    start = keras.Input((None,), dtype="int32")
    x = PerformerAttention(2, 4)(lm(start))
    model = keras.Model(start, keras.layers.Dense(3)(x))
    blocks = lm.blocks
    for part in (lm.norm, blocks[0], blocks[1].attention, blocks[2].expand):
        part.trainable = False
    blocks[0].attention_norm.trainable = True  # inside a frozen block
    expected = trained(model)
    assert expected.count(False) > 20
    again = made_again(model, way)
    assert trained(again) == expected
    again.layers[1].blocks[0].trainable = blocks[0].trainable = True
    assert trained(again) == trained(model) != expected
    for each in (model, again):
        for layer in each.layers[1:-1]:
            layer.trainable = False
    twice = made_again(again, way)
    assert len(twice.trainable_weights) == len(model.trainable_weights) == 2
    for layer in (*model.layers[1:-1], *twice.layers[1:-1]):
        layer.trainable = True
    assert trained(twice) == trained(model)


@pytest.mark.parametrize(
    ("option", "inside"),
    [("forget_gate", "forget_gate"), ("qk_norm", "query_key_norm")],
)
def test_a_warning_names_an_option_that_a_file_has_no_weights_of(option, inside):
    language_model().save_weights("plain.weights.h5")
    model = language_model(**{option: True})
    with pytest.warns(UserWarning, match=f"no weights of .*{inside}, .* without this"):
        model.load_weights("plain.weights.h5")
    model.save_weights("own.weights.h5")
    model.load_weights("own.weights.h5")  # without a warning


def test_attention_that_was_given_frozen_comes_back_as_it_is():
    attention = PerformerAttention(2, 4, causal=True, trainable=False)
    model = language_model(max_length=8, num_layers=2, attention=attention)
    model.blocks[0].attention.trainable = True
    for each in (model, made_again(model, "clone")):
        assert [x.attention.trainable for x in each.blocks] == [True, False]


def test_frozen_layers_that_a_class_does_not_make_are_left_out():
    model = language_model(max_length=8, num_layers=2, attention="exact")
    model.teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.teacher.trainable = False
    again = PerformerLM.from_config(model.get_config())
    assert not hasattr(again, "teacher") and again.norm.trainable
    model.teacher = None
    converted, _ = keras_performer.convert_to_performer(model, exact_window=2)
    with pytest.raises(ValueError, match="already built"):  # like every layer of Keras
        converted.blocks[1].more = keras.layers.Dense(2)
    attention = converted.blocks[1].attention
    inside = [x for x in all_layers(attention) if x.name == "random_projection"]
    inside[0].trainable = attention.query_dense.trainable = False
    again = made_again(converted, "load").blocks[1].attention
    assert again.key_dense.trainable and not again.query_dense.trainable
