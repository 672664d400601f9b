"""Layers that learn from exact attention come nearer to it, and only they change."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, transfer_attention
from keras_performer.conversion import TransferredLayer, TransferReport
from keras_performer.layers import ExactAttention

# Keras 3.10 says so of every functional model that it makes of a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

BATCH, LENGTH, DIM, HEADS, KEY_DIM = 2, 11, 6, 2, 3


def data(seed=0, number=BATCH):
    random = np.random.default_rng(seed)
    return random.normal(size=(number, LENGTH, DIM)).astype("float32")


def batches(number):
    return tf.data.Dataset.from_tensor_slices(data(1, number * BATCH)).batch(BATCH)


def trained(**call):
    """A model of one layer of attention that is sharp."""
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
    """The same with other queries and keys: what they were is to be learned."""
    model = converted(model, exact_window=exact_window)
    random = np.random.default_rng(5)
    layer = model.get_layer("one")
    for weight in (*layer.query_dense.weights, *layer.key_dense.weights):
        weight.assign_add(0.3 * random.normal(size=weight.shape))
    return model


def error_of(model, teacher, x, there=True):
    """The relative error of the output of a model, of tokens that are there."""
    output, wanted = (np.asarray(m(x), np.float64) for m in (model, teacher))
    there = np.broadcast_to(there, output.shape[:2])
    return np.linalg.norm((output - wanted)[there]) / np.linalg.norm(wanted[there])


def values(weights):
    return [np.array(weight) for weight in weights]


def assert_equal(weights, others):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_what_can_be_learned_is():
    teacher = trained()
    model = moved(teacher, exact_window=LENGTH)  # it sees all: exact attention
    before = values(model.weights)
    new, report = transfer_attention(
        model, teacher, batches(8), learning_rate=3e-2, num_steps=120, verbose=0
    )
    (row,) = report.layers
    assert row.before > 0.2 and row.after < 0.2 * row.before
    x = data(9)
    assert error_of(new, teacher, x) < 0.25 * error_of(model, teacher, x)
    assert_equal(values(model.weights), before)
    for name in ("value_dense", "output_dense"):
        layers = (getattr(m.get_layer("one"), name) for m in (new, model))
        assert_equal(*(values(layer.weights) for layer in layers))
    assert_equal(
        [new.get_layer("one").projection_matrix],
        [model.get_layer("one").projection_matrix],
    )


def loss_of(query_kernel, query_bias, key_kernel, key_bias, layer, x, wanted):
    """The loss written out, of exact attention."""
    query = tf.einsum("btd,dnh->btnh", x, query_kernel) + query_bias
    key = tf.einsum("btd,dnh->btnh", x, key_kernel) + key_bias
    weights = tf.nn.softmax(tf.einsum("btnh,bsnh->bnts", query, key) * KEY_DIM**-0.5)
    kernel, bias = layer.value_dense.weights
    value = tf.einsum("btd,dnh->btnh", x, kernel) + bias
    kernel, bias = layer.output_dense.weights
    output = tf.einsum("bnts,bsnh,nhd->btd", weights, value, kernel) + bias
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
    weights = [tf.Variable(weight) for weight in weights]
    means, squares = ([np.zeros(x.shape) for x in weights] for _ in range(2))
    for step in range(num_steps):
        with tf.GradientTape() as tape:
            loss = loss_of(*weights, layer, x, teacher(x))
        gradients = [x.numpy() for x in tape.gradient(loss, weights)]
        norm = np.sqrt(sum((x**2).sum() for x in gradients))
        of_step = rate * (1 + np.cos(np.pi * step / num_steps)) / 2
        for i, gradient in enumerate(gradients):
            gradient = gradient / max(1.0, norm)
            means[i] += 0.1 * (gradient - means[i])
            squares[i] += 0.001 * (gradient**2 - squares[i])
            mean, square = (
                means[i] / (1 - 0.9 ** (step + 1)),
                squares[i] / (1 - 0.999 ** (step + 1)),
            )
            weights[i].assign_sub(of_step * mean / (np.sqrt(square) + 1e-7))
    layer = new.get_layer("one")
    # the bias of keys changes nothing: its gradient is what rounding leaves
    for own, expected in zip(
        (*layer.query_dense.weights, layer.key_dense.kernel), weights[:3], strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_errors_are_those_of_data_that_is_held_out():
    teacher = trained()
    model = moved(teacher, exact_window=3)
    *_, one, other = batches(10)
    new, report = transfer_attention(
        model, teacher, batches(10), learning_rate=3e-2, num_steps=30, verbose=0
    )
    (row,) = report.layers
    held_out = tf.concat([one, other], 0)
    np.testing.assert_allclose(row.before, error_of(model, teacher, held_out), 1e-4)
    np.testing.assert_allclose(row.after, error_of(new, teacher, held_out), 1e-4)
    assert row.after < row.before
    # with a window, gains train too
    assert (new.get_layer("one").log_gain.numpy() != 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("names", [["query_mask", "value_mask"], ["attention_mask"]])
def test_padding_does_not_count(names):
    keras.utils.set_random_seed(3)
    start, there = keras.Input((LENGTH, DIM)), keras.Input((LENGTH,), dtype="bool")
    masks = dict.fromkeys(names, there)
    if "attention_mask" in masks:
        masks["attention_mask"] = keras.ops.expand_dims(there, 1)
    layer = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")
    teacher = keras.Model([start, there], layer(start, start, **masks))
    mask = np.arange(LENGTH) < np.array([[LENGTH], [5]])
    model = converted(teacher)
    x = data()
    found = []
    for padding in (0.0, 3.0):
        given = [np.where(mask[..., np.newaxis], x, padding).astype("float32"), mask]
        new, report = transfer_attention(model, teacher, given, num_steps=3, verbose=0)
        (row,) = report.layers
        np.testing.assert_allclose(
            row.before, error_of(model, teacher, given, mask), 1e-4
        )
        found.append((new, row))
    (one, first), (other, second) = found
    np.testing.assert_allclose(first[1:3], second[1:3], rtol=1e-5)
    for weight, same in zip(one.weights, other.weights, strict=True):
        np.testing.assert_allclose(weight, same, rtol=1e-5, atol=1e-6)


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
    """Causal grouped attention, in a list."""

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


@pytest.mark.slow
def test_layers_inside_of_layers_learn_each_from_the_teacher():
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    teacher = keras.Sequential([start, Blocks(name="blocks")])
    model = converted(teacher)
    model.get_layer("blocks").blocks[0].trainable = False
    new, report = transfer_attention(model, teacher, Batches(0), num_steps=4, verbose=0)
    first, second = (m.get_layer("blocks").blocks for m in (new, model))
    assert_equal(values(first[0].weights), values(second[0].weights))
    # the second is given what the teacher's is, whatever the first now says
    x = data(2)
    exact = teacher.get_layer("blocks").blocks
    x = x + exact[0](x, x, use_causal_mask=True)
    wanted = np.asarray(exact[1](x, x, use_causal_mask=True))
    outputs = (layers[1](x, x, use_causal_mask=True) for layers in (second, first))
    errors = [
        np.linalg.norm(np.asarray(output) - wanted) / np.linalg.norm(wanted)
        for output in outputs
    ]
    (row,) = report.layers
    np.testing.assert_allclose(row[1:3], errors, rtol=1e-4)
    assert row.after < row.before
    assert list(report.left_out.values()) == ["Its queries and keys are frozen."]


@pytest.mark.slow
def test_a_transferred_model_trains_on_with_lora_and_is_saved(tmp_path):
    teacher = trained()
    new, _ = transfer_attention(
        converted(teacher), teacher, data(), num_steps=2, verbose=0
    )
    layer = new.get_layer("one")
    for name in ("query", "key", "value", "output"):
        getattr(layer, f"{name}_dense").enable_lora(2)
    kernel = layer.query_dense._kernel.numpy()
    new.compile("adam", "mse", jit_compile=False)
    losses = new.fit(data(), teacher(data()), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    # only what was added to it has changed
    np.testing.assert_array_equal(layer.query_dense._kernel.numpy(), kernel)
    assert np.abs(layer.query_dense.lora_kernel_b.numpy()).max() > 0
    new.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data()), new(data()))


def test_what_cannot_be_trained_is_refused():
    teacher = trained()
    model = converted(teacher)
    with pytest.raises(ValueError, match="see `convert_to_performer`"):
        transfer_attention(teacher, teacher, data())
    with pytest.raises(
        ValueError, match="exact attention where model has one: .* It has Perf"
    ):
        transfer_attention(model, model, data())
    start = keras.Input((LENGTH, DIM))
    other = keras.Model(start, keras.layers.Dense(DIM)(start))
    with pytest.raises(ValueError, match="where model has one: .* It has Dense"):
        transfer_attention(model, other, data())
    with pytest.raises(ValueError, match="teacher must be the model that model was"):
        transfer_attention(model, keras.layers.Dense(2), data())
    with pytest.raises(
        ValueError, match="at least key_dim=3 tokens for one .* It has 2"
    ):
        start = keras.Input((None, DIM))
        exact = ExactAttention(HEADS, KEY_DIM, name="one")
        teacher = keras.Model(start, exact(start))
        transfer_attention(converted(teacher), teacher, data()[:1, :2], verbose=0)
    model.trainable = False
    with pytest.raises(
        ValueError, match="It has none. Its queries and keys are frozen"
    ):
        transfer_attention(model, trained(), data())
    with pytest.raises(ValueError, match="at least one batch"):
        transfer_attention(model, teacher, iter([]))
    for name in ("num_steps", "learning_rate", "max_batches"):
        with pytest.raises(ValueError, match=f"{name} must be"):
            transfer_attention(model, teacher, data(), **{name: 0})


def test_layers_that_data_does_not_reach_are_left_out():
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    there = keras.Input((LENGTH,), dtype="bool")
    one = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")
    two = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="two")
    x = one(start, start)
    teacher = keras.Model([start, there], two(x, x, query_mask=there))
    padding = [data(), np.zeros((BATCH, LENGTH), bool)]
    _, report = transfer_attention(
        converted(teacher), teacher, padding, num_steps=1, verbose=0
    )
    assert [row.path for row in report.layers] == ["one"]
    assert report.left_out == {"two": "No token of data reaches it."}


def test_layers_that_few_tokens_reach_are_left_out():
    start = keras.Input((None, DIM))
    x = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")(start, start)
    few = keras.layers.MultiHeadAttention(HEADS, LENGTH + 1, name="few")
    teacher = keras.Model(start, few(x, x))
    model, given = converted(teacher), data()[:1]
    calibrated, report = calibrate(model, given, verbose=0)
    assert [row.path for row in report.layers] == ["one"]
    _, learned = transfer_attention(model, teacher, given, num_steps=1, verbose=0)
    assert [row.path for row in learned.layers] == ["one"]
    for why in report.left_out, learned.left_out:
        assert list(why) == ["few"]
        assert f"key_dim={LENGTH + 1} tokens for few" in why["few"]
        assert f"It has {LENGTH}" in why["few"]


def test_layers_that_lost_what_they_do_are_named():
    rows = [
        TransferredLayer("one", 0.9, 0.6, 1.0),
        TransferredLayer("two", 0.9, 0.4, 1),
    ]
    report = TransferReport(rows, {"three": "Why."})
    assert report.learned == ["two"]
    lines = str(report).splitlines()
    assert lines[1].endswith("1.0  keep it exact") and lines[2].endswith("1.0")
    assert lines[3] == "three: stays. Why."


@pytest.mark.slow
def test_layers_that_are_alike_learn_as_each_does_alone():
    # they take turns in what is compiled for both
    keras.utils.set_random_seed(3)
    start = keras.Input((LENGTH, DIM))
    x = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="one")(start, start)
    x = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="two")(x, x)
    teacher = keras.Model(start, x)
    random = np.random.default_rng(4)
    for weight in teacher.weights:
        weight.assign(random.normal(size=weight.shape))
    names = "one", "two"
    options = dict(num_steps=3, verbose=0)
    model = converted(teacher)
    together, _ = transfer_attention(model, teacher, batches(3), **options)
    for name, other in zip(names, reversed(names)):
        model = converted(teacher)
        first = values(model.get_layer(name).query_dense.weights)
        model.get_layer(other).trainable = False
        alone, report = transfer_attention(model, teacher, batches(3), **options)
        assert [row.path for row in report.layers] == [name]
        learned = values(alone.get_layer(name).query_dense.weights)
        assert np.abs(learned[0] - first[0]).max() > 1e-3
        for one, both in zip(
            alone.get_layer(name).weights, together.get_layer(name).weights
        ):
            np.testing.assert_allclose(one, both, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_learns_as_float32_does(dtype):
    """Steps are taken inside of the teacher's call, which casts variables there."""

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

    half, single = learned(dtype), learned("float32")
    assert half.after < 0.9 * half.before
    assert abs(half.after - single.after) < 0.1 * single.before
