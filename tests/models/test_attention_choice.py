"""PerformerLM(attention=, embedding=): the attention and positions of blocks."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import (
    PerformerAttention,
    PerformerEncoder,
    PerformerLM,
    convert_to_performer,
    feature_maps,
    generate,
)
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock
from tests.layers.inputs import language_model, normal, plain_options
from tests.models.kinds import GATING, local
from tests.models.token_models import IDS, assert_likeliest, small_model

PLAIN = plain_options()
BIASES = (2.0, 7.0)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (64, True, BIASES)),
        ({"feature_map": "taylor"}, (64, True, BIASES)),
        # only estimates of softmax get a window with exact weights
        ({"feature_map": "relu"}, (None, True, BIASES)),
        ({"causal": False}, (None, False, BIASES)),
        ({"causal": False, "exact_window": 5}, (5, False, BIASES)),
        (PLAIN, (None, False, BIASES)),
        ({"exact_window": 5}, (5, True, BIASES)),
        ({"forget_gate_bias": (1, 3)}, (64, True, (1.0, 3.0))),
        ({"max_length": 100}, (64, True, BIASES)),
        ({"max_length": 5000}, (64, True, (2.0, math.log(20_000)))),
        ({"attention": "exact"}, (None, True, BIASES)),
        ({"attention": "exact", "forget_gate": False}, (None, False, BIASES)),
        ({"attention": ["exact", "performer"]}, (64, True, BIASES)),
        ({"attention": "none", "max_length": 90}, (None, None, None)),
        # a given layer keeps its own options
        ({"attention": PerformerAttention(2, 4, causal=True)}, (None, None, None)),
    ],
)
def test_the_window_and_the_gate_that_a_model_has(given, wanted):
    model = PerformerLM(11, num_layers=2, num_heads=2, hidden_dim=8, **given)
    config = model.get_config()
    names = "exact_window", "forget_gate", "forget_gate_bias"
    assert tuple(config.get(name) for name in names) == wanted
    for block in model.blocks:
        if isinstance(block.attention, PerformerAttention):
            assert block.attention.exact_window == wanted[0]
        if block.attention is not None:
            assert block.attention.forget_gate == bool(wanted[1])
            assert block.attention.forget_gate_bias == (wanted[2] or BIASES)
    assert PerformerLM.from_config(config).get_config() == config


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, 128),
        ({"num_heads": 8}, 128),
        ({"num_heads": 2}, 256),  # a head size of 32
        ({"attention": ["exact", "performer", "performer"]}, 128),
        ({"num_random_features": 32}, 32),
        ({"num_random_features": "auto"}, 128),
        ({"exact_window": None}, 256),
        ({"forget_gate": False}, 256),
        ({"causal": False}, 256),
        ({"causal": False, "exact_window": 4, "forget_gate": True}, 128),
        ({"feature_map": "favor+"}, 256),
        ({"feature_map": "relu"}, 256),
        ({"feature_map": "taylor"}, None),
    ],
)
def test_small_heads_with_window_and_gate_have_fewer_features(given, wanted):
    model = PerformerLM(11, num_layers=3, hidden_dim=64, **{"num_heads": 4, **given})
    again = PerformerLM.from_config(model.get_config())
    for layer in (model.blocks[-1].attention, again.blocks[-1].attention):
        assert layer.num_random_features == wanted
        if wanted is not None:
            assert layer.projection_matrix.shape == (wanted, layer.key_dim)


def test_automatic_features_in_a_config_are_older_than_fewer_features():
    small = dict(exact_window=4, forget_gate=True)
    layer = PerformerAttention(2, 4, **small)
    model = PerformerLM(11, num_layers=1, num_heads=2, hidden_dim=8)
    for made in (layer, model):
        config = made.get_config()
        assert config["num_random_features"] == 128
        older = type(made).from_config({**config, "num_random_features": "auto"})
        assert older.get_config()["num_random_features"] == 256
    encoder = PerformerEncoder(16, 2, **small)
    encoder.build((1, 9, 8))
    file = keras.saving.serialize_keras_object(encoder)
    assert file["config"]["num_random_features"] == 128
    file["config"]["num_random_features"] = "auto"
    older = keras.saving.deserialize_keras_object(file)
    assert older.attention.num_random_features == 256
    # an encoder knows its heads only when it is built
    encoder = PerformerEncoder.from_config(
        PerformerEncoder(16, 2, **small).get_config()
    )
    encoder.build((1, 9, 8))
    assert encoder.attention.num_random_features == 128


@pytest.mark.parametrize("attention", ["performer", "exact", ["performer", "exact"]])
def test_a_config_without_the_options_is_older_than_the_defaults(attention):
    sizes = dict(num_layers=2, num_heads=2, hidden_dim=8)
    config = PerformerLM(11, attention=attention, **sizes).get_config()
    for name in ("exact_window", "forget_gate", "forget_gate_bias"):
        config.pop(name, None)
    older = PerformerLM.from_config(config)
    for block in older.blocks:
        assert not block.attention.forget_gate
        assert getattr(block.attention, "exact_window", None) is None
    paths = [w.path for w in older.weights]
    assert not [path for path in paths if "forget_gate" in path or "gain" in path]


@pytest.mark.parametrize("attention", ["performer", "exact", "none"])
def test_configs_of_before_have_all_options_with_any_attention(attention):
    model = language_model(attention=attention, seed=1)
    before = dict(
        feature_map=feature_maps.serialize(feature_maps.get("softmax")),
        num_random_features=256,
        chunk_size=None,
        exact_below=None,
        exact_window=None,
        initial_log_gain=0.0,
        qk_norm=False,
        conv_kernel_size=None,
    )
    old = PerformerLM.from_config({**model.get_config(), **before})
    number = {"num_random_features": 256} if attention == "performer" else {}
    assert old.get_config() == {**model.get_config(), **number}
    old.set_weights(model.get_weights())
    np.testing.assert_array_equal(old(IDS), model(IDS))


GRID = dict(position_shape=(8, 2))
ROTARY = ExactAttention(2, 4, causal=True, rotary=True)
CAN = ExactAttention(2, 4, causal=True)
ODD = ExactAttention(2, 3, causal=True)


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("rotary", {}),
        ("rotary", dict(attention="exact")),
        ("rotary", dict(attention=ROTARY)),
        ("rotary", dict(attention=keras.saving.serialize_keras_object(ROTARY))),
        ("rotary", dict(attention=local(rotary=(8, 2)), **GRID)),
        ("rotary", dict(attention=CAN)),
        ("rotary", dict(attention=["none", "exact", "performer"])),
        ("rotary", dict(attention=["none", local(), "exact"])),
        ("learned", dict(attention=CAN, **GRID)),
        ("learned", dict(attention=ODD)),
        ("learned", dict(attention=["exact", ODD])),
        ("learned", dict(attention="none")),
        ("learned", dict(attention=["none", "none"])),
        ("learned", dict(attention=GATING)),
        ("learned", dict(attention=["performer", GATING, "none"])),
        ("learned", GRID),
        ("learned", dict(hidden_dim=6)),
    ],
)
def test_positions_are_what_all_attentions_can(expected, options):
    attention = options.get("attention")
    num_layers = len(attention) if isinstance(attention, list) else 1
    options = dict(options, num_layers=num_layers)
    model = small_model(**options)
    assert model.position_embedding == expected
    assert (model.positions is None) == (expected == "rotary")
    grid = (8, 2) if "position_shape" in options else True
    for block in model.blocks:
        if isinstance(block.attention, (PerformerAttention, ExactAttention)):
            rotary = grid if expected == "rotary" else None
            assert block.attention.rotary == rotary
    given = small_model(**options, position_embedding=expected)
    copy = PerformerLM.from_config(model.get_config())
    assert copy.get_config() == {**given.get_config(), "name": model.name}


@pytest.mark.parametrize("attention", [GATING, ["performer", GATING], "none", CAN])
def test_with_rotary_no_positions_are_added(attention):
    model = small_model(attention=attention, position_embedding="rotary")
    assert model.positions is None
    for block in model.blocks:
        assert getattr(block.attention, "rotary", True) is True
    if attention == "none":
        outputs = model(np.full((1, 9), 3)).numpy()
        np.testing.assert_allclose(outputs, outputs[:, :1].repeat(9, 1), atol=1e-5)


def test_a_block_hands_positions_on():
    block = PerformerBlock(ExactAttention(2, 4, rotary=True), 8)
    x, positions = normal((2, 5, 8)), np.array([[4, 1, 7, 2, 9]])
    output = block(x, positions=positions)
    order = np.argsort(positions[0])
    expected = block(x[:, order], positions=positions[:, order])
    np.testing.assert_allclose(output.numpy()[:, order], expected, atol=1e-5)
    assert np.abs(output - block(x)).max() > 1e-3
    with pytest.raises(ValueError, match="a block without attention"):
        PerformerBlock(None, 8)(x, positions=positions)


def test_each_block_has_its_own():
    attention = ["performer", local(rotary=True), "none", "exact", GATING]
    model = small_model(
        attention=attention, num_layers=5, position_embedding="rotary", dtype="float64"
    )
    kinds = PerformerAttention, LocalAttention, type(None), ExactAttention, type(GATING)
    made = [block.attention for block in model.blocks]
    assert tuple(map(type, made)) == kinds
    assert made[0].num_random_features == 6 and made[1].sliding_window == 3
    for layer in (made[0], made[1], made[3], made[4]):
        assert layer.causal and layer.compute_dtype == "float64"
        assert layer.name == "attention" and layer not in attention


def test_a_layer_is_copied_for_each_block():
    template = PerformerAttention(
        2, 3, value_dim=5, causal=True, num_random_features=6, name="mine", seed=7
    )
    model = small_model(attention=template)
    first, second = (block.attention for block in model.blocks)
    for layer in (first, second):
        assert layer is not template
        assert (layer.value_dim, layer.key_dim, layer.name) == (5, 3, "attention")
    difference = first.projection_matrix.numpy() - second.projection_matrix.numpy()
    assert np.abs(difference).max() > 0.1
    assert not template.built
    same = small_model(attention=keras.saving.serialize_keras_object(template))
    same.set_weights(model.get_weights())
    np.testing.assert_array_equal(same(IDS), model(IDS))
    # blocks get the same seeds for a template, a name, and a list of names
    named, listed = small_model(), small_model(attention=["performer", "performer"])
    assert named.blocks[1].attention.seed == second.seed
    for one, other in zip(named.weights, listed.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    other, same = (x.blocks[1].attention for x in (small_model(seed=2), listed))
    assert np.abs(other.projection_matrix - same.projection_matrix).max() > 0.1


def test_a_copy_keeps_what_took_the_place_of_the_first_attention_only():
    model = small_model(attention=CAN)
    first = model.blocks[0].attention.path
    other, _ = convert_to_performer(model, exact_window=3, layers=[first])
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(other)
    )
    for each in (other, copy):
        kinds = [type(block.attention) for block in each.blocks]
        assert kinds == [PerformerAttention, ExactAttention]


def test_an_exact_model_that_is_converted_generates():
    model = small_model(attention="exact", conv_kernel_size=3)
    converted, _ = convert_to_performer(model, exact_window=16)
    np.testing.assert_allclose(converted(IDS), model(IDS), atol=1e-4)
    assert_likeliest(model, generate(converted, IDS[:, :3], 16, temperature=0), 3)


def test_an_embedding_of_another_dtype_is_cast():
    """Compares a float32 embedding with a mixed_bfloat16 one, in the same model."""
    table = np.random.default_rng(0).standard_normal((11, 8)).astype("float32")
    models = []
    for dtype in ("float32", "mixed_bfloat16"):
        embedding = keras.layers.Embedding(11, 8, dtype=dtype)
        embedding.build(None)
        embedding.embeddings.assign(table)
        models.append(small_model(embedding=embedding, dtype="mixed_bfloat16", seed=1))
    models[1].set_weights(models[0].get_weights())
    tokens = np.arange(8)[np.newaxis]
    one, other = (np.asarray(tf.cast(m(tokens), "float32")) for m in models)
    assert np.abs(one).max() > 1e-2
    np.testing.assert_allclose(one, other, atol=2e-2 * np.abs(one).max())
