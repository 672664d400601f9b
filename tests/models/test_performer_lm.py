"""PerformerLM: dtypes, positions, padding, its embedding, configs and subclasses."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM
from tests.layers.inputs import language_model
from tests.models.token_models import IDS, loss_and_gradients, small_model


def test_ids_may_have_any_dtype_that_holds_them():
    model = small_model(vocabulary_size=256)  # uint8 cannot hold 256
    ids = 251 - IDS
    for dtype in ("uint8", "int16", "int64", "float32"):
        found = model(ids.astype(dtype))
        np.testing.assert_array_equal(found, model(ids.astype("int32")))
    # without attention, which never sees ids and takes long to compile
    options = dict(attention="none", num_layers=1)
    model = small_model(vocabulary_size=256, **options)
    compiled = tf.function(model, jit_compile=True, autograph=False)
    given, wanted = (compiled(tf.constant(ids, t)) for t in ("uint8", "int32"))
    np.testing.assert_allclose(given, wanted, atol=1e-6)


def test_gradients_in_bfloat16_of_many_tokens():
    """Sums over tokens in bfloat16 would stop growing, with errors of 0.3 to 0.8."""
    ids = np.random.default_rng(0).integers(0, 11, (2, 2048))
    options = dict(num_layers=1, max_length=2048, chunk_size=None)
    found, expected = (
        loss_and_gradients(small_model(dtype=policy, **options), ids, ids // 4)[1]
        for policy in ("mixed_bfloat16", "float32")
    )
    for actual, wanted in zip(found, expected):
        assert np.linalg.norm(actual - wanted) < 0.03 * np.linalg.norm(wanted)


def test_positions_of_a_grid_are_sums_of_row_column_and_channel():
    model = small_model(position_shape=(2, 4, 2))
    rows, columns, channels = (table.numpy() for table in model.positions.tables)
    assert (len(rows), len(columns), len(channels)) == (2, 4, 2)
    expected = rows[:, None, None] + columns[:, None] + channels
    model.embedding.embeddings.assign(tf.zeros((11, 8)))
    for first, length in ((0, 11), (13, 3)):
        state = {**model.embedding_state(1), "position": tf.constant([first])}
        found = model.embed(IDS[:1, :length], state)[0].numpy()[0]
        wanted = expected.reshape(16, 8)[first : first + length]
        np.testing.assert_allclose(found, wanted, atol=1e-7)


@pytest.mark.parametrize(
    "options", [{}, dict(causal=False), dict(attention="none")], ids=str
)
def test_padding_equals_a_shorter_sequence(options):
    model = small_model(**options)
    mask = np.arange(11) < np.array([[11], [9], [5], [1]])
    padded = model(IDS, mask=mask).numpy()
    for row, length in ((1, 9), (2, 5)):
        alone = model(IDS[row : row + 1, :length])[0]
        np.testing.assert_allclose(padded[row, :length], alone, atol=2e-6)


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
    """The gradient sums over all positions; LoRA's half-precision sum would stop."""
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


def masking_model(**changes):
    """Returns a model whose embedding masks tokens of id 0."""
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
    with pytest.raises(ValueError, match="recompute supports no mask"):
        model.fit(PADDED, PADDED, verbose=0)


def test_subclasses_may_add_attributes_layers_and_metrics():
    class Scaled(PerformerLM):
        """Model that sets attributes for `call` only after the base constructor."""

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.scale = 3.0
            self.further = keras.layers.Dense(3)
            self.loss_tracker = keras.metrics.Mean(name="loss")

        def call(self, inputs, **kwargs):
            return self.scale * super().call(inputs, **kwargs)

    plain = small_model()
    model = Scaled(**{**plain.get_config(), "name": "scaled"})
    model.set_weights(plain.get_weights())
    np.testing.assert_allclose(model(IDS), 3 * plain(IDS), rtol=1e-6)
    model.further.build((None, 4))
    assert model.further.kernel is model.trainable_weights[-2]
    assert model.loss_tracker in model.metrics


@pytest.mark.parametrize("is_built", [True, False])
def test_fit_makes_variables_before_it_traces_the_step(is_built, uncompiled):
    """TensorFlow would trace twice; a layer without weights needs that in any case."""

    class Counted(PerformerLM):
        traces = 0

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.further = keras.layers.Dense(11)
            if is_built:
                self.further.build((None, 11))

        def train_step(self, data):
            self.traces += 1
            return super().train_step(data)

        def call(self, inputs, **kwargs):
            return self.further(super().call(inputs, **kwargs))

    model = small_model(cls=Counted, attention="none", num_layers=1)
    model.compile("adam", model.loss, metrics=["accuracy"])
    before = model.get_weights()[0]
    model.fit(IDS, IDS, verbose=0)
    assert model.traces == (1 if is_built else 2)
    assert len(model.optimizer.variables) == 2 + 2 * len(model.trainable_weights)
    assert np.abs(model.get_weights()[0] - before).max() > 0


class FirstToken(keras.layers.Layer):
    def call(self, x):
        return x[:, 0]


class FirstTokenOfShape(FirstToken):
    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]


@pytest.mark.parametrize("head", [None, FirstToken, FirstTokenOfShape])
def test_accuracy_compares_ids(head, uncompiled):
    """Its meaning depends on the shapes of targets and outputs."""
    model = small_model(head=head and head(), attention="none")
    model.compile(keras.optimizers.SGD(0.0), model.loss, metrics=["accuracy"])
    targets = IDS % 8 if head is None else IDS[:, 0] % 8
    found = model.fit(IDS, targets, verbose=0).history["accuracy"]
    wanted = np.mean(np.argmax(model(IDS), -1) == targets)
    np.testing.assert_allclose(found, [wanted], rtol=1e-6)


def test_a_config_is_plain_and_a_copy():
    sizes = dict(hidden_dim=np.int64(8), max_length=np.int64(16), seed=np.int64(1))
    model = small_model(num_random_features=np.int32(6), autocast=False, **sizes)
    wanted = small_model(name=model.name).get_config()
    assert json.dumps(model.get_config()) == json.dumps(wanted)
    attention = PerformerAttention(2, 4, causal=True, num_random_features=8)
    model = language_model(max_length=8, attention=attention)
    config = model.get_config()
    config["attention"]["config"]["num_random_features"] = 16
    again = PerformerLM.from_config(model.get_config())
    assert again.blocks[0].attention.num_random_features == 8
    assert PerformerLM.from_config(config).blocks[0].attention.num_random_features == 16
    assert language_model(max_length=None).get_config()["position_shape"] is None
    taylor = language_model(feature_map="taylor")
    assert taylor.blocks[0].attention.projection_matrix is None
    assert taylor.get_config()["num_random_features"] is None
