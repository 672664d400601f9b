"""Layers that learn from exact attention approach it, and nothing else changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, transfer_attention
from keras_performer.conversion import TransferredLayer, TransferReport
from keras_performer.layers import ExactAttention
from tests.contract import relative_error

# Keras 3.10 warns about every functional model that it makes from a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

BATCH, LENGTH, DIM, HEADS, KEY_DIM = 2, 11, 6, 2, 3


@pytest.fixture(autouse=True)
def eagerly(request):
    """Runs fast tests eagerly, as tracing takes longer than a few steps."""
    tf.config.run_functions_eagerly("slow" not in request.keywords)
    yield
    tf.config.run_functions_eagerly(False)


def data(seed=0, number=BATCH):
    random = np.random.default_rng(seed)
    return random.normal(size=(number, LENGTH, DIM)).astype("float32")


def batches(number):
    return tf.data.Dataset.from_tensor_slices(data(1, number * BATCH)).batch(BATCH)


def trained(**call):
    """Returns a model of one layer with sharp attention."""
    keras.utils.set_random_seed(3)
    layer = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")
    start = keras.Input((LENGTH, DIM))
    model = keras.Model(start, layer(start, start, **call))
    random = np.random.default_rng(4)
    for weight in layer.weights[:4]:
        weight.assign(random.normal(size=weight.shape))
    return model


def converted(model, **options):
    given = {"exact_window": 3, "num_random_features": 8, "seed": 0, **options}
    return convert_to_performer(model, **given)[0]


def moved(model, exact_window):
    """Returns the model, converted, with changed queries and keys to learn again."""
    model = converted(model, exact_window=exact_window)
    random = np.random.default_rng(5)
    layer = model.get_layer("one")
    for weight in (*layer.query_dense.weights, *layer.key_dense.weights):
        weight.assign_add(0.3 * random.normal(size=weight.shape))
    return model


def values(weights):
    return [np.array(weight) for weight in weights]


def assert_equal(weights, others):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def loss_of(query_kernel, query_bias, key_kernel, key_bias, layer, x, wanted):
    """Computes the loss of exact attention step by step."""
    query = tf.einsum("btd,dnh->btnh", x, query_kernel) + query_bias
    key = tf.einsum("btd,dnh->btnh", x, key_kernel) + key_bias
    weights = tf.nn.softmax(tf.einsum("btnh,bsnh->bnts", query, key) * KEY_DIM**-0.5)
    attended = tf.einsum("bnts,bsnh->btnh", weights, layer.value_dense(x))
    output = layer.output_dense(attended)
    return tf.reduce_sum((output - wanted) ** 2) / tf.reduce_sum(wanted**2)


def test_steps_are_those_of_adam_on_the_loss():
    teacher = trained()
    model = moved(teacher, exact_window=LENGTH)
    rate, num_steps, x = 1e-2, 3, data()
    new, _ = transfer_attention(
        model, teacher, x, learning_rate=rate, num_steps=num_steps, verbose=0
    )
    layer = model.get_layer("one")
    weights = [*layer.query_dense.weights, *layer.key_dense.weights]
    weights = [keras.Variable(weight) for weight in values(weights)]
    falling = keras.optimizers.schedules.CosineDecay(rate, num_steps)
    adam = keras.optimizers.Adam(falling, global_clipnorm=1.0)
    for _ in range(num_steps):
        with tf.GradientTape() as tape:
            inner = [weight.value for weight in weights]
            loss = loss_of(*inner, layer, x, teacher(x))
        adam.apply(tape.gradient(loss, inner), weights)
    layer = new.get_layer("one")
    # the bias of keys has no effect: its gradient is only rounding
    for own, expected in zip(layer.weights[:3], weights):
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-5)


def test_errors_are_those_of_data_that_is_held_out():
    teacher = trained()
    model = moved(teacher, exact_window=3)
    before = values(model.weights)
    *_, one, other = batches(10)
    new, report = transfer_attention(
        model, teacher, batches(10), learning_rate=3e-2, num_steps=16, verbose=0
    )
    (row,) = report.layers
    held_out = tf.concat([one, other], 0)
    for found, one in ((row.before, model), (row.after, new)):
        wanted = relative_error(one(held_out), teacher(held_out))
        np.testing.assert_allclose(found, wanted, 1e-4)
    assert row.after < row.before
    # only queries, keys and, with a window, gains train
    layer, old = (m.get_layer("one") for m in (new, model))
    assert (layer.log_gain.numpy() != 0).all()
    for name in ("value_dense", "output_dense"):
        assert_equal(*(values(getattr(x, name).weights) for x in (layer, old)))
    assert_equal([layer.projection_matrix], [old.projection_matrix])
    assert_equal(values(model.weights), before)
    new.save("model.keras")
    loaded = keras.models.load_model("model.keras")
    np.testing.assert_array_equal(loaded(data()), new(data()))


def test_what_training_made_worse_stays():
    teacher = trained()
    model = converted(teacher)
    new, report = transfer_attention(
        model, teacher, data(), learning_rate=100.0, num_steps=2, verbose=0
    )
    assert report.layers[0].after == report.layers[0].before
    assert_equal(values(new.weights), values(model.weights))


@keras.saving.register_keras_serializable("test_transfer")
class Blocks(keras.layers.Layer):
    """Layer with a list of causal grouped attention layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [
            keras.layers.GroupQueryAttention(KEY_DIM, 4, 2) for _ in range(2)
        ]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape, shape)

    def call(self, x):
        for block in self.blocks:
            x = x + block(x, x, use_causal_mask=True)
        return x


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return data(index), np.zeros(BATCH)


def test_layers_inside_of_layers_learn_each_from_the_teacher():
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    teacher = keras.Sequential([start, Blocks(name="blocks")])
    model = converted(teacher)
    model.get_layer("blocks").blocks[0].trainable = False
    new, report = transfer_attention(model, teacher, Batches(0), num_steps=4, verbose=0)
    first, second = (m.get_layer("blocks").blocks for m in (new, model))
    assert_equal(values(first[0].weights), values(second[0].weights))
    # the second layer learns with the teacher's input, not with the first's new output
    x = data(2)
    exact = teacher.get_layer("blocks").blocks
    x = x + exact[0](x, x, use_causal_mask=True)
    wanted, *outputs = (
        layers[1](x, x, use_causal_mask=True) for layers in (exact, second, first)
    )
    errors = [relative_error(output, wanted) for output in outputs]
    (row,) = report.layers
    np.testing.assert_allclose(row[1:3], errors, rtol=1e-4)
    assert row.after < row.before
    assert list(report.left_out.values()) == ["Its queries and keys are frozen."]


def test_what_cannot_be_trained_is_refused():
    start = keras.Input((LENGTH, DIM))
    dense = keras.Model(start, keras.layers.Dense(DIM)(start))
    teacher = trained()
    model, frozen = converted(teacher), converted(teacher)
    frozen.trainable = False
    start = keras.Input((None, DIM))
    exact = keras.Model(start, ExactAttention(HEADS, KEY_DIM, name="one")(start))
    for given, message, options in (
        ((teacher, teacher), "make one with `convert_to_performer`", {}),
        ((model, dense), "where model has one: .* with Dense there", {}),
        ((model, keras.layers.Dense(2)), "must be the model before its conversion", {}),
        ((frozen, teacher), "such a layer. Its queries and keys are frozen", {}),
        ((model, teacher), "num_steps must be", dict(num_steps=0)),
        ((model, teacher), "learning_rate must be", dict(learning_rate=0)),
        ((model, teacher), "max_batches must be", dict(max_batches=0)),
    ):
        with pytest.raises(ValueError, match=message):
            transfer_attention(*given, data(), **options)
    with pytest.raises(ValueError, match="key_dim=3 tokens for one .* Received: 2 tok"):
        transfer_attention(converted(exact), exact, data()[:1, :2], verbose=0)


@pytest.mark.slow  # compiled functions get query and key as separate tensors
def test_layers_with_a_forget_gate_are_left_out():
    start = keras.Input((LENGTH, DIM))
    x = ExactAttention(HEADS, KEY_DIM, forget_gate=True, name="gated")(start)
    x = ExactAttention(HEADS, KEY_DIM, forget_gate=True, name="second")(x)
    gated = keras.Model(start, x)
    with pytest.raises(ValueError, match="such a layer. It has a forget gate") as info:
        transfer_attention(converted(gated), gated, data(), verbose=0)
    assert str(info.value).count("forget gate") == 1  # one reason of both layers
    plain = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="plain")
    teacher = keras.Model(start, plain(x, x))
    model = converted(teacher)
    new, report = transfer_attention(model, teacher, data(), num_steps=1, verbose=0)
    assert [row.path for row in report.layers] == ["plain"]
    for name in "gated", "second":
        assert report.left_out[name].startswith("It has a forget gate")
        kept, given = (values(m.get_layer(name).weights) for m in (new, model))
        assert_equal(kept, given)


def test_layers_that_few_tokens_reach_are_left_out():
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    there = keras.Input((LENGTH,), dtype="bool")
    one = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")
    few = keras.layers.MultiHeadAttention(HEADS, BATCH * LENGTH + 1, name="few")
    none = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="none")
    x = one(start, start)
    x = few(x, x)
    teacher = keras.Model([start, there], none(x, x, query_mask=there))
    model = converted(teacher)
    given = [data(), np.zeros((BATCH, LENGTH), bool)]
    _, calibrated = calibrate(model, given, verbose=0)
    _, learned = transfer_attention(model, teacher, given, num_steps=1, verbose=0)
    for report in calibrated, learned:
        assert [row.path for row in report.layers] == ["one"]
        assert f"key_dim={BATCH * LENGTH + 1} tokens for few" in report.left_out["few"]
        assert f"Received: {BATCH * LENGTH} tokens" in report.left_out["few"]
        assert report.left_out["none"] == "No token of data reaches it."


def test_layers_that_lost_what_they_do_are_named():
    lost = TransferredLayer("one", 0.9, 0.6, 1.0)
    learned = TransferredLayer("two", 0.9, 0.4, 1)
    report = TransferReport([lost, learned], {"three": "Why."})
    assert report.learned == ["two"]
    lines = str(report).splitlines()
    assert lines[1].endswith("1.0  keep it exact") and lines[2].endswith("1.0")
    assert lines[3] == "three: stays. Why."


def test_a_layer_whose_outputs_are_0_need_not_stay_exact():
    teacher = trained()
    dense = teacher.get_layer("one").output_dense
    dense.set_weights([np.zeros_like(x) for x in dense.get_weights()])
    model = converted(teacher)
    new, report = transfer_attention(model, teacher, data(), num_steps=1, verbose=0)
    assert np.isnan(report.layers[0][1:3]).all() and report.learned == ["one"]
    assert str(report).endswith("its outputs are 0")
    np.testing.assert_array_equal(new(data()), teacher(data()))


@pytest.mark.slow
def test_layers_that_are_alike_learn_as_each_does_alone():
    # both take turns with one compiled function
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    x = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")(start, start)
    x = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="two")(x, x)
    teacher = keras.Model(start, x)
    random = np.random.default_rng(4)
    for weight in teacher.weights:
        weight.assign(random.normal(size=weight.shape))
    options = dict(num_steps=3, verbose=0)
    model = converted(teacher)
    together, _ = transfer_attention(model, teacher, batches(3), **options)
    model = converted(teacher)
    first = values(model.get_layer("two").query_dense.weights)
    model.get_layer("one").trainable = False
    alone, report = transfer_attention(model, teacher, batches(3), **options)
    assert [row.path for row in report.layers] == ["two"]
    learned = values(alone.get_layer("two").query_dense.weights)
    assert np.abs(learned[0] - first[0]).max() > 1e-3
    for one, both in zip(
        alone.get_layer("two").weights, together.get_layer("two").weights
    ):
        np.testing.assert_allclose(one, both, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_half_precision_learns_as_float32_does():
    """Steps run inside the teacher's call, which casts variables."""

    def learned(dtype):
        keras.utils.set_random_seed(3)
        layer = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one", dtype=dtype)
        start = keras.Input((LENGTH, DIM))
        teacher = keras.Model(start, layer(start, start))
        model = moved(teacher, exact_window=3)
        _, report = transfer_attention(
            model, teacher, batches(4), num_steps=20, verbose=0
        )
        return report.layers[0]

    half, single = learned("mixed_float16"), learned("float32")
    assert half.after < 0.9 * half.before
    assert abs(half.after - single.after) < 0.1 * single.before
