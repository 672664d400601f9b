"""PerformerLM: causality, positions, padding, state, seeds, and that it learns."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM, generate
from tests.layers.inputs import language_model, plain_options

IDS = np.random.default_rng(0).integers(0, 11, (3, 24))


def small_model(**changes):
    options = dict(
        vocabulary_size=11,
        max_length=24,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        seed=1,
    )
    attention = changes.get("attention", "performer")
    options.update(plain_options(attention))
    if attention != "none":
        options["num_random_features"] = 6
    return PerformerLM(**{**options, **changes})


def as_float(x):
    return tf.cast(x, tf.float64).numpy()


def test_no_logit_depends_on_a_later_token():
    changed = IDS.copy()
    changed[:, 13:] = (changed[:, 13:] + 5) % 11
    for causal in (True, False):
        model = small_model(causal=causal)
        before, after = model(IDS).numpy(), model(changed).numpy()
        moved = np.abs(before - after).max((0, 2))
        assert (moved[13:] > 1e-4).all()
        assert (moved[:13] < 1e-6).all() if causal else (moved[:13] > 1e-6).all()


def test_ids_may_have_any_dtype_that_holds_them():
    model = small_model(vocabulary_size=256)  # which uint8 does not hold
    ids = 251 - IDS
    for dtype in ("uint8", "int16", "int64", "float32"):
        found = model(ids.astype(dtype))
        np.testing.assert_array_equal(found, model(ids.astype("int32")))
    # attention, which never sees ids, would compile long
    options = dict(attention="none", num_layers=1)
    model = small_model(vocabulary_size=256, **options)
    compiled = tf.function(model, jit_compile=True, autograph=False)
    given, wanted = (compiled(tf.constant(ids, t)) for t in ("uint8", "int32"))
    np.testing.assert_allclose(given, wanted, atol=1e-6)


def test_gradients_in_bfloat16_of_many_tokens():
    """A sum over tokens in bfloat16 would stop growing: 0.3 to 0.8 off."""
    ids = np.random.default_rng(0).integers(0, 11, (2, 2048))

    def gradients(policy):
        model = small_model(num_layers=1, max_length=2048, dtype=policy)
        model.set_weights(weights)
        with tf.GradientTape() as tape:
            logits = model(ids, training=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    ids // 4, logits, from_logits=True
                )
            )
        gradients = tape.gradient(loss, model.trainable_weights)
        return [tf.convert_to_tensor(g).numpy() for g in gradients]

    weights = small_model(num_layers=1, max_length=2048).get_weights()
    for actual, expected in zip(gradients("mixed_bfloat16"), gradients("float32")):
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        assert error < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, tolerance, feature_map",
    [
        ("float32", 2e-6, "softmax"),
        ("mixed_bfloat16", 6e-2, "relu"),
        ("mixed_float16", 1e-2, "softmax"),
        ("float64", 1e-12, "relu"),
    ],
)
def test_prefill_and_steps_give_the_logits_of_the_whole(policy, tolerance, feature_map):
    model = small_model(dtype=policy, feature_map=feature_map)
    whole = as_float(model(IDS[:, :13]))
    logits, state = model(
        IDS[:, :7], state=model.get_initial_state(3), return_state=True
    )
    parts = [logits]
    for t in range(7, 13):
        logits, state = model(IDS[:, t : t + 1], state=state, return_state=True)
        parts.append(logits)
    parts = np.concatenate([as_float(part) for part in parts], 1)
    assert np.abs(parts - whole).max() < tolerance * np.abs(whole).max()
    assert (state["position"].numpy() == 13).all()
    floats = [x for x in tf.nest.flatten(state) if x.dtype.is_floating]
    expected = tf.float64 if policy == "float64" else tf.float32
    assert all(x.dtype == expected for x in floats)
    assert logits.dtype == expected


def test_positions_of_a_grid_are_sums_of_row_column_and_channel():
    model = small_model(position_shape=(2, 4, 3))
    rows, columns, channels = (table.numpy() for table in model.positions.tables)
    assert (len(rows), len(columns), len(channels)) == (2, 4, 3)
    expected = rows[:, None, None] + columns[:, None] + channels
    model.embedding.embeddings.assign(tf.zeros((11, 8)))
    embedded = model.embed(IDS[:1])[0].numpy()[0]
    np.testing.assert_allclose(embedded, expected.reshape(24, 8), atol=1e-7)
    state = {**model.embedding_state(1), "position": tf.constant([17])}
    later = model.embed(IDS[:1, :3], state)[0].numpy()[0]
    np.testing.assert_allclose(later, expected.reshape(24, 8)[17:20], atol=1e-7)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_equals_a_shorter_sequence(causal):
    model = small_model(causal=causal)
    mask = np.arange(24)[None] < np.array([[24], [9], [15]])
    padded = model(IDS, mask=mask).numpy()
    np.testing.assert_allclose(padded[1, :9], model(IDS[1:2, :9])[0], atol=2e-6)
    np.testing.assert_allclose(padded[2, :15], model(IDS[2:, :15])[0], atol=2e-6)


def test_blocks_have_features_of_their_own_and_a_seed_repeats_them():
    def matrices(model):
        return [block.attention.projection_matrix.numpy() for block in model.blocks]

    first, second = matrices(small_model())
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(matrices(small_model())[1], second)
    assert np.abs(matrices(small_model(seed=2))[0] - first).max() > 0.1


@pytest.mark.parametrize(
    "message, options",
    [
        ("num_heads must divide hidden_dim", dict(hidden_dim=9)),
        ("vocabulary_size must be a positive int", dict(vocabulary_size=0)),
        ("product of position_shape must be max_length", dict(position_shape=(5, 5))),
        ("dropout must be a float", dict(dropout=1.0)),
        ("must be even", dict(num_random_features=7)),
    ],
)
def test_bad_arguments_raise(message, options):
    with pytest.raises(ValueError, match=message):
        small_model(**options)


def test_a_sequence_that_is_too_long_raises():
    with pytest.raises(ValueError, match="max_length=24"):
        small_model()(np.zeros((1, 25), "int32"))


def test_a_sequence_that_grows_too_long_raises():
    model = small_model()
    _, state = model(IDS[:, :20], return_state=True)
    model(IDS[:, :4], state=state)
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=24"):
        model(IDS[:, :5], state=state)
    ids = tf.TensorSpec((None, None), tf.int32)
    graph = tf.function(model, input_signature=[ids])
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=24"):
        graph(tf.zeros((1, 25), tf.int32))


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_state_of_another_depth_raises(num_layers):
    state = small_model(num_layers=num_layers).get_initial_state(3)
    with pytest.raises(ValueError, match=f", 2. Received: the states of {num_layers}"):
        small_model()(IDS, state=state, return_state=True)


@pytest.mark.parametrize("recompute", [None, "network"])
def test_inputs_are_one_tensor(recompute):
    model = small_model(recompute=recompute)
    model.compile("sgd", "mse", run_eagerly=True)
    for inputs, name in (({"a": IDS}, "dict"), ([IDS], "tuple")):
        with pytest.raises(ValueError, match=f"one int tensor .* of type {name}"):
            model.fit(inputs, IDS, verbose=0)


def test_autocast_is_false():
    model, same = small_model(), small_model(autocast=False)
    same.set_weights(model.get_weights())
    np.testing.assert_array_equal(same(IDS), model(IDS))
    with pytest.raises(ValueError, match="autocast must be False.*autocast=True"):
        small_model(autocast=True)


def lora(model):
    model.embedding.enable_lora(2)
    model.embedding.lora_embeddings_b.assign(np.ones((2, 8)))


@pytest.mark.parametrize(
    "prepare, policy, jit_compile",
    [
        (None, "float32", True),
        (None, "mixed_bfloat16", False),
        (lora, "mixed_bfloat16", True),
        (lora, "mixed_float16", False),
    ],
)
def test_the_gradient_of_the_embedding_is_one_tensor(prepare, policy, jit_compile):
    """The sum over all times a token comes; in half precision LoRA's would stop."""
    model = small_model(dtype=policy)
    if prepare:
        prepare(model)
    ids = np.random.default_rng(0).integers(0, 3, (2, 2000))
    weights = model.embedding.trainable_weights

    def gradients(embed):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(embed(), "float32"))
        return tape.gradient(loss, [w.value for w in weights])

    def product():
        return tf.one_hot(ids, 11) @ tf.cast(model.embedding.embeddings, "float32")

    results = tf.function(gradients, jit_compile=jit_compile)(
        lambda: model.embedding(tf.constant(ids))
    )
    tolerance = 1e-5 if policy == "float32" else 1e-2
    for result, wanted in zip(results, gradients(product), strict=True):
        assert isinstance(result, tf.Tensor)
        limit = tolerance * np.abs(wanted).max()
        np.testing.assert_allclose(result, wanted, rtol=0, atol=limit)


def test_a_quantized_embedding_gives_nearly_the_same():
    model = small_model()
    expected = model.embedding(IDS).numpy()
    model.embedding.quantize("int8")
    limit = 0.01 * np.abs(expected).max()
    np.testing.assert_allclose(model.embedding(IDS), expected, atol=limit)


def test_sizes_may_be_numpy_ints():
    sizes = dict(hidden_dim=np.int64(8), max_length=np.int64(24), seed=np.int64(1))
    model = small_model(num_random_features=np.int32(6), **sizes)
    assert json.dumps(model.get_config()) == json.dumps(
        small_model(name=model.name).get_config()
    )


def masking_model(**changes):
    """A model whose embedding says that tokens of id 0 are padding."""
    embedding = keras.layers.Embedding(
        11,
        8,
        mask_zero=True,
        embeddings_initializer=keras.initializers.RandomNormal(seed=1),
    )
    given = dict(causal=False, num_random_features=8, seed=0, chunk_size=4)
    return language_model(max_length=8, embedding=embedding, **{**given, **changes})


PADDED = np.array([[3, 4, 5, 0, 0]])


@pytest.mark.parametrize(
    "positions, recompute, policy",
    [
        ("learned", None, "mixed_bfloat16"),
        ("rotary", None, "float32"),
        ("learned", "block", "float32"),
        ("rotary", "block", "mixed_bfloat16"),
    ],
)
def test_the_mask_of_an_embedding_hides_padding(positions, recompute, policy):
    model = masking_model(
        position_embedding=positions, recompute=recompute, dtype=policy
    )
    short = model(PADDED[:, :3])
    for training in (False, True):
        padded = model(PADDED, training=training)
        np.testing.assert_allclose(padded[:, :3], short, atol=2e-6)
    assert np.abs(model(np.where(PADDED == 0, 1, PADDED))[:, :3] - short).max() > 1e-3


def test_recompute_refuses_what_it_would_not_hide():
    model = masking_model(causal=True, recompute="block")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="recompute hides no tokens"):
        model.fit(PADDED, PADDED, verbose=0)


def test_a_mask_of_one_row_is_that_of_all_rows_in_training_too():
    model = small_model(causal=False, recompute="block", chunk_size=2)
    ids, mask = np.array([[1, 2, 3, 4, 5]] * 2), np.array([[1, 1, 1, 0, 0]], bool)
    found = model(ids, mask=mask, training=True)
    np.testing.assert_allclose(found[:, :3], model(ids[:, :3]), rtol=1e-4, atol=1e-5)


def test_subclasses_may_add_layers_and_metrics():
    class WithMetric(PerformerLM):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.further = keras.layers.Dense(3)
            self.loss_tracker = keras.metrics.Mean(name="loss")

    model = WithMetric(**{**small_model().get_config(), "name": "with_metric"})
    model.further.build((None, 4))
    assert model.further.kernel is model.trainable_weights[-2]
    assert model.loss_tracker in model.metrics


def test_a_config_is_a_copy():
    attention = PerformerAttention(2, 4, causal=True, num_random_features=8)
    model = language_model(max_length=8, attention=attention)
    config = model.get_config()
    config["attention"]["config"]["num_random_features"] = 16
    again = PerformerLM.from_config(model.get_config())
    assert again.blocks[0].attention.num_random_features == 8
    assert PerformerLM.from_config(config).blocks[0].attention.num_random_features == 16


def test_a_config_is_read_with_custom_objects():
    class Head(keras.layers.Dense):
        """Registered nowhere."""

    config = language_model(max_length=8, head=Head(3)).get_config()
    with pytest.raises(TypeError, match="Could not locate class 'Head'"):
        PerformerLM.from_config(config)
    model = PerformerLM.from_config(config, custom_objects={"Head": Head})
    assert isinstance(model.head, Head)


@pytest.mark.parametrize("position_embedding", ["learned", "rotary"])
def test_longer_sequences_are_refused_where_xla_compiles(position_embedding):
    """XLA leaves assertions out, and positions would begin anew."""
    options = dict(position_embedding=position_embedding, feature_map="relu")
    model = PerformerLM(
        9, max_length=6, num_layers=1, num_heads=1, hidden_dim=4, **options
    )
    compiled = tf.function(
        lambda ids: model(ids),
        input_signature=[tf.TensorSpec((None, None), tf.int32)],
        jit_compile=True,
    )
    ids = np.ones((2, 6), "int32")
    np.testing.assert_allclose(compiled(ids), model(ids), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="make_PerformerLM_with_a_m"
    ):
        compiled(np.ones((2, 7), "int32"))


def test_a_model_without_a_longest_sequence(tmp_path):
    """Nothing of a model with rotary positions is as long as a sequence."""
    given = dict(position_embedding="rotary", num_layers=1, feature_map="relu")
    short, free = small_model(**given), small_model(max_length=None, **given)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 60))
    for model in (short, free):
        model.build((2, 24))
    free.set_weights(short.get_weights())
    assert free.get_config()["position_shape"] is None
    np.testing.assert_array_equal(free(tokens[:, :24]), short(tokens[:, :24]))
    drawn = generate(free, tokens[:, :20], 40, temperature=0)
    likeliest = np.argmax(free(drawn), -1)[:, 19:-1]
    np.testing.assert_array_equal(drawn[:, 20:], likeliest)
    whole, state = free(tokens), free.get_initial_state(2)
    _, state = free(tokens[:, :50], state=state, return_state=True)
    rest, state = free(tokens[:, 50:], state=state, return_state=True)
    np.testing.assert_allclose(rest, whole[:, 50:], atol=1e-5)
    free.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), whole)


@pytest.mark.parametrize(
    "options",
    [dict(position_embedding="learned"), dict(attention="none"), dict(hidden_dim=6)],
)
def test_learned_positions_need_a_longest_sequence(options):
    with pytest.raises(ValueError, match="Learned positions need max_length"):
        small_model(max_length=None, **options)


def test_biases_of_the_gate_follow_the_length():
    for length, last in ((24, 7.0), (1000, np.log(4000)), (None, 7.0)):
        model = small_model(
            max_length=length, position_embedding="rotary", forget_gate=True
        )
        gate = model.blocks[0].attention.forget_gate_bias
        np.testing.assert_allclose(gate, (2.0, last))
    given = small_model(forget_gate=True, forget_gate_bias=(1, 3))
    assert given.blocks[0].attention.forget_gate_bias == (1.0, 3.0)
