"""PerformerLM(attention=, embedding=, head=): what is passed in or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import (
    PerformerAttention,
    PerformerLM,
    convert_to_performer,
    feature_maps,
    generate,
)
from keras_performer.layers import EmbeddingLayer, ExactAttention
from tests.layers.inputs import language_model
from tests.models.token_models import IDS, MODES, loss_and_gradients, small_model


def model_with(attention, recompute=None, **options):
    return small_model(recompute, attention=attention, **options)


def wide(**options):
    return PerformerAttention(2, 3, num_random_features=6, causal=True, **options)


@pytest.mark.parametrize("causal", [True, False])
def test_exact_is_the_model_with_a_window_over_everything(causal):
    exact = small_model(attention="exact", causal=causal)
    near = small_model(exact_window=100, num_random_features=8, causal=causal)
    assert {type(b.attention) for b in exact.blocks} == {ExactAttention}
    others = "random_projection", "far_gain"
    own = [w for w in near.weights if not any(x in w.path for x in others)]
    assert len(own) == len(near.weights) - 2 * 4
    exact.set_weights([w.numpy() for w in own])
    np.testing.assert_allclose(exact(IDS), near(IDS), atol=1e-5)


def test_a_copy_keeps_what_took_the_place_of_the_first_attention_only():
    model = model_with(ExactAttention(2, 3, causal=True))
    model.build((None, None))
    first = model.blocks[0].attention.path
    other, _ = convert_to_performer(model, exact_window=3, layers=[first])
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(other)
    )
    for each in (other, copy):
        kinds = [type(block.attention) for block in each.blocks]
        assert kinds == [PerformerAttention, ExactAttention]


def test_a_window_trains_with_recomputed_chunks():
    plain, again = (
        small_model(r, exact_window=4, num_layers=1) for r in (None, "network")
    )
    again.set_weights(plain.get_weights())
    results = [loss_and_gradients(m, IDS, IDS) for m in (again, plain)]
    for got, right in zip(*map(tf.nest.flatten, results), strict=True):
        np.testing.assert_allclose(got, right, atol=1e-5)


@pytest.mark.parametrize("recompute", [None, *MODES])
def test_none_is_a_model_of_single_tokens(recompute):
    model = model_with("none", recompute=recompute)
    changed = IDS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    moved = np.abs(model(changed) - model(IDS)).max((0, 2)) > 1e-4
    assert np.flatnonzero(moved).tolist() == [4]
    expected = loss_and_gradients(model_with("none"))
    for result, wanted in zip(
        tf.nest.flatten(loss_and_gradients(model)), tf.nest.flatten(expected)
    ):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
    if recompute is None:
        drawn = generate(model, IDS[:, :3], 8, temperature=0)
        likeliest = model(drawn[:, :-1]).numpy().argmax(-1)[:, 2:]
        np.testing.assert_array_equal(drawn[:, 3:], likeliest)


def test_none_need_not_be_causal():
    causal, other = (model_with("none", causal=c) for c in (True, False))
    np.testing.assert_array_equal(causal(IDS), other(IDS))


def test_padding_changes_nothing_for_single_tokens():
    model = model_with("none")
    # Keras warns where a layer drops a mask
    masked = model(IDS, mask=np.arange(IDS.shape[1]) < np.array([[3]] * len(IDS)))
    np.testing.assert_array_equal(masked, model(IDS))


def test_a_layer_is_copied_for_each_block():
    template = wide(value_dim=5, feature_map="relu", name="mine", seed=7)
    model = model_with(template, dtype="float64")
    first, second = (block.attention for block in model.blocks)
    for layer in (first, second):
        assert layer is not template
        assert (layer.value_dim, layer.key_dim, layer.name) == (5, 3, "attention")
        assert layer.feature_map == template.feature_map
        assert layer.compute_dtype == "float64"
    difference = first.projection_matrix.numpy() - second.projection_matrix.numpy()
    assert np.abs(difference).max() > 0.1
    assert not template.built
    same = model_with(keras.saving.serialize_keras_object(template), dtype="float64")
    same.set_weights(model.get_weights())
    np.testing.assert_array_equal(same(IDS), model(IDS))
    # the seeds of the blocks are those that a name gets
    named = small_model()
    assert named.blocks[1].attention.seed == second.seed


@pytest.mark.parametrize("attention", ["exact", wide(value_dim=5)])
def test_a_model_is_saved_with_its_attention(attention, tmp_path):
    model = model_with(attention)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert loaded.get_config() == model.get_config()


@pytest.mark.parametrize(
    "message, options",
    [
        ("an AttentionLayer or the config of one", dict(attention="softmax")),
        (
            "has no argument exact_widow: .*exact_window",
            dict(exact_widow=4),
        ),
        ("PerformerLM has no argument num_layer: .*num_layers", dict(num_layer=4)),
        ("rotary is no option of PerformerLM", dict(rotary=True)),
        ("num_key_value_heads must divide num_heads", dict(num_key_value_heads=3)),
        ("must be an AttentionLayer", dict(attention=keras.layers.Dense(1))),
        ("chunk_size is .* which ExactAttention has not", dict(chunk_size=4)),
        ("feature_map is .* which ExactAttention has not", dict(feature_map="relu")),
        (
            ": num_random_features. Leave",
            dict(attention="none", num_random_features=8),
        ),
        (": chunk_size. Leave", dict(attention=wide(), chunk_size=8)),
        ("have the causal of the", dict(attention=wide(), causal=False)),
        ("have the num_heads of the", dict(attention=wide(), num_heads=4)),
        ("attention needs a state: use recompute=None", dict(recompute="block")),
    ],
)
def test_what_does_not_fit_is_refused(message, options):
    defaults = dict(num_layers=1, num_heads=2, hidden_dim=8, attention="exact")
    with pytest.raises(ValueError, match=message):
        PerformerLM(11, max_length=16, **{**defaults, **options})


class Pairs(EmbeddingLayer):
    """Embeds a token with the one before it, which also goes to the head."""

    extra_dtypes = tf.float32

    def build(self, input_shape):
        self.table = self.add_weight(shape=(11, 11, 8), name="table")

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, 1), tf.int32)

    def call(self, inputs, state):
        inputs = tf.cast(inputs, tf.int32)
        before = tf.concat([state, inputs[:, :-1]], 1)
        table = tf.convert_to_tensor(self.table)
        x = tf.gather(tf.reshape(table, (-1, 8)), 11 * before + inputs)
        return x, tf.cast(before, tf.float32), inputs[:, -1:]


class Shifted(keras.layers.Layer):
    """Logits that the token before moves, by a weight."""

    def build(self, input_shape):
        self.dense = keras.layers.Dense(11)
        self.dense.build(input_shape)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x, before):
        ids = tf.range(11, dtype=before.dtype)
        return self.dense(x) + self.scale * tf.abs(before[..., tf.newaxis] - ids)

    def next_token_logits(self, outputs):
        return -outputs

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 11)


def pairs(recompute=None, **options):
    return small_model(recompute, embedding=Pairs(), head=Shifted(), **options)


def test_an_embedding_remembers_inputs_and_tells_the_head():
    model = pairs()
    changed = IDS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    logits = model(IDS)
    assert (np.abs(model(changed) - logits)[:, :4].max() < 1e-6).all()
    state, parts = model.get_initial_state(4), []
    for start, end in ((0, 1), (1, 5), (5, 11)):
        part, state = model(IDS[:, start:end], state=state, return_state=True)
        parts.append(part)
    np.testing.assert_allclose(tf.concat(parts, 1), logits, atol=1e-5)
    np.testing.assert_array_equal(state["embedding"], IDS[:, -1:])
    assert model.compute_output_shape((2, 3)) == (2, 3, 11)


def test_a_head_says_what_generate_samples_from():
    model = pairs()
    drawn = generate(model, IDS[:, :3], 7, temperature=0)
    likeliest = model(drawn[:, :-1]).numpy().argmin(-1)
    np.testing.assert_array_equal(drawn[:, 3:], likeliest[:, 2:])


@pytest.mark.slow
def test_gradients_of_layers_that_are_passed_in():
    results = tf.nest.flatten(loss_and_gradients(pairs("network")))
    expected = tf.nest.flatten(loss_and_gradients(pairs()))
    for result, wanted in zip(results, expected, strict=True):
        assert np.abs(wanted).max() > 0
        limit = 1e-5 * max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=limit)


def test_layers_that_are_passed_in_are_saved(tmp_path):
    with keras.saving.custom_object_scope({"Pairs": Pairs, "Shifted": Shifted}):
        model = pairs()
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert [w.name for w in loaded.weights] == [w.name for w in model.weights]


class Scaled(PerformerLM):
    """Subclass that sets an attribute after the constructor, before the first call."""

    def __init__(self, *args, scale, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def call(self, inputs, **kwargs):
        return self.scale * super().call(inputs, **kwargs)


def test_a_constructor_does_not_call_the_model():
    model = Scaled(11, num_layers=1, num_heads=1, hidden_dim=8, scale=3.0)
    plain = PerformerLM(11, num_layers=1, num_heads=1, hidden_dim=8)
    plain.set_weights(model.get_weights())
    np.testing.assert_allclose(model(IDS), 3 * plain(IDS), rtol=1e-6)


def test_an_embedding_of_another_dtype_is_cast():
    """A float32 embedding in a mixed_bfloat16 model, beside one of its own policy."""
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


def test_an_embedding_of_another_width_is_refused():
    model = small_model(embedding=keras.layers.Embedding(11, 1))
    with pytest.raises(ValueError, match=r"hidden_dim=.*Received.*shape \(1, 3, 1\)"):
        model(np.zeros((1, 3), int))


def test_the_default_number_of_features_goes_with_every_map(tmp_path):
    model = language_model(feature_map="taylor")
    assert model.blocks[0].attention.projection_matrix is None
    assert model.get_config()["num_random_features"] == "auto"
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    np.testing.assert_allclose(loaded(IDS), model(IDS), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="has no random features"):
        language_model(feature_map="taylor", num_random_features=256)


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
    )
    old = PerformerLM.from_config({**model.get_config(), **before})
    number = {"num_random_features": 256} if attention == "performer" else {}
    assert old.get_config() == {**model.get_config(), **number}
    old.set_weights(model.get_weights())
    np.testing.assert_array_equal(old(IDS), model(IDS))
