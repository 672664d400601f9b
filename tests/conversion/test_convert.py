"""Converted models, at all depths, keep their outputs if all keys are near."""

import inspect

import keras
import numpy as np
import pytest

from keras_performer import convert_to_performer, convert_to_softmax, zoo
from keras_performer.conversion import convert_attention
from keras_performer.layers import (
    ExactAttention,
    LinearTransformerAttention,
    LocalAttention,
    PerformerAttention,
)
from keras_performer.layers.keras_privates import all_layers, dense_layer

# Keras 3.10 warns about every functional model that it makes from a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM = 19, 6
X = np.random.default_rng(1).normal(size=(2, LENGTH, DIM)).astype("float32")


def attention(**options):
    given = dict(num_heads=3, key_dim=4, bias_initializer="normal", **options)
    return keras.layers.MultiHeadAttention(**given)


def graph(layer, **call):
    start = keras.Input((LENGTH, DIM))
    return keras.Model(start, keras.layers.Dense(DIM)(layer(start, start, **call)))


def in_sequence(*layers):
    return keras.Sequential([keras.Input((LENGTH, DIM)), *layers])


def shared_in_a_graph():
    start, layer = keras.Input((LENGTH, DIM)), attention()
    y = layer(start, start)
    return keras.Model(start, layer(y, y))


class Block(keras.layers.Layer):
    """Layer with attention as an attribute, and again in a dict of tuples."""

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale
        self.attention = attention(name="attention")
        self.again = {"same": (self.attention,), "dense": [keras.layers.Dense(DIM)]}

    def build(self, shape):
        self.attention.build(shape, shape)
        self.again["dense"][0].build(shape)

    def call(self, x):
        (same,) = self.again["same"]
        attended = self.attention(x, x, use_causal_mask=True) + same(x, x)
        return x + self.scale * self.again["dense"][0](attended)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


class LateBlock(keras.layers.Layer):
    """Layer that makes its attention in `build`."""

    def build(self, shape):
        self.first, self.second = attention(), attention()
        for layer in (self.first, self.second):
            layer.build(shape, shape)

    def call(self, x):
        return self.second(x, self.first(x, x))


class Sparing(keras.layers.Layer):
    """Layer without own `get_config` and `name`, which is empty before `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = self.more = None

    def build(self, shape):
        self.attention, self.more = attention(), [attention()]
        for layer in (self.attention, *self.more):
            layer.build(shape, shape)

    def call(self, x):
        return self.more[0](self.attention(x, x), x)


class Dropout(Sparing):
    """Layer with the name of a Keras layer."""


class Stack(keras.Model):
    """Model with layers in lists and a model inside."""

    def __init__(self, depth, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        self.blocks = [Block(0.5, name=f"block_{i}") for i in range(depth)]
        self.late = LateBlock()
        self.head = keras.Sequential([LateBlock(), keras.layers.Dense(2)])

    def build(self, shape):
        for layer in (*self.blocks, self.late, self.head):
            layer.build(shape)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.late(x))

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


def stack(depth):
    model = Stack(depth)
    model(X)
    return model


@keras.saving.register_keras_serializable(package="test_convert")
class GraphOfBlocks(keras.Model):
    """Functional model with its own class, as in KerasHub."""

    def __init__(self, direct=False, **kwargs):
        start = keras.Input((LENGTH, DIM))
        y = LateBlock()(start)
        if direct:
            y = attention()(y, y)
        super().__init__(start, Block()(y), **kwargs)
        self.direct = direct

    def get_config(self):
        return {"direct": self.direct, "name": self.name}


def spared():
    start = keras.Input((LENGTH, DIM))
    return keras.Model(start, keras.layers.Dropout(0.1)(Sparing()(start)))


CLASSES = {x.__name__: x for x in (Block, LateBlock, Sparing, Dropout, Stack)}
# Models, with their number of attention layers.
MODELS = {
    "grouped": (lambda: graph(keras.layers.GroupQueryAttention(4, 6, 3)), 1),
    "twice in a graph": (shared_in_a_graph, 1),
    "nested": (lambda: in_sequence(graph(attention()), Block(0.3)), 2),
    "subclass": (lambda: stack(1), 5),
    "subclass of a graph": (GraphOfBlocks, 3),
    "without a config": (spared, 2),
    "like Keras": (lambda: in_sequence(Dropout(), keras.layers.Dropout(0.1)), 2),
}


LOST_BY_KERAS_3_10 = "nested", "subclass", "subclass of a graph"


def says_the_same(model, *inputs, convert=convert_to_performer, **options):
    """Converts with a window over all keys, compares outputs, returns the result."""
    if convert is convert_to_performer:
        options = {"exact_window": 3 * LENGTH, **options}
    new, report = convert(model, **options)
    expected = model(*inputs)
    np.testing.assert_allclose(new(*inputs), expected, rtol=1e-4, atol=1e-5)
    return new, report


@pytest.mark.parametrize("name", MODELS)
def test_it_is_saved_and_comes_back(name):
    if keras.version().startswith("3.10.") and name in LOST_BY_KERAS_3_10:
        pytest.skip("Keras 3.10 does not restore the model before its conversion")
    make, number = MODELS[name]
    model = make()
    expected, weights = model(X).numpy(), [w.copy() for w in model.get_weights()]
    performer, report = convert_to_performer(
        model, exact_window=3, num_random_features=8
    )
    assert [row.became for row in report.layers] == ["PerformerAttention"] * number
    kinds = [type(layer) for layer in all_layers(performer)]
    assert kinds.count(PerformerAttention) == number  # shared layers stay shared
    assert not {keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention} & {
        *kinds
    }
    assert isinstance(performer, type(model)) and performer is not model
    estimate = performer(X).numpy()
    assert np.abs(estimate - expected).max() > 1e-3
    performer.save("model.keras")
    loaded = keras.models.load_model("model.keras", custom_objects=CLASSES)
    np.testing.assert_allclose(loaded(X), estimate, rtol=1e-5, atol=1e-6)
    assert len(loaded.weights) == len(performer.weights)
    # the weights are the model's, and the model did not change
    softmax, report = convert_to_softmax(loaded)
    np.testing.assert_allclose(softmax(X), expected, rtol=1e-4, atol=1e-5)
    assert {row.was for row in report.layers} == {"PerformerAttention"}
    np.testing.assert_array_equal(model(X), expected)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_way_back_trains_with_the_dropout_of_the_model():
    """Equal seeds drop equal weights."""
    model = graph(attention(dropout=0.4, seed=3, name="dropping"))
    performer, _ = convert_to_performer(model, seed=3)
    assert performer.get_layer("dropping").dropout == 0.4
    softmax, _ = convert_to_softmax(performer)
    expected = model(X, training=True)
    np.testing.assert_allclose(softmax(X, training=True), expected, atol=1e-5)
    assert np.abs(model(X) - expected).max() > 0.1


def test_a_converted_model_trains_with_losses_of_ones_own():
    def loss_of_mine(y, output):
        return keras.ops.mean((y - output) ** 2, -1)

    class MetricOfMine(keras.metrics.MeanSquaredError):
        pass

    model = graph(attention(name="attention"))
    model.compile("adam", loss_of_mine, metrics=[MetricOfMine()], run_eagerly=True)
    performer, _ = convert_to_performer(model, exact_window=3, num_random_features=8)
    assert performer.run_eagerly and performer.loss is loss_of_mine
    assert performer.optimizer is not model.optimizer
    kernel = performer.get_layer("attention").query_dense.kernel
    before = kernel.numpy()
    performer.fit(X, np.ones((2, LENGTH, DIM)), verbose=0)
    assert np.abs(kernel.numpy() - before).max() > 1e-5


def test_a_number_of_features_goes_with_its_map():
    model = graph(attention(name="own"))
    options = dict(exact_window=3, feature_map="taylor")
    taylor, _ = convert_to_performer(model, **options)
    assert taylor.get_layer("own").projection_matrix is None
    with pytest.raises(ValueError, match="has no random features"):
        convert_to_performer(model, num_random_features=8, **options)
    explicit, _ = convert_to_performer(model, num_random_features=None, **options)
    eight, _ = convert_to_performer(model, exact_window=3, num_random_features=8)
    # the second conversion removes the number of features
    same, _ = convert_attention(eight, PerformerAttention, feature_map="taylor")
    for other in (explicit, same):
        np.testing.assert_array_equal(other(X), taylor(X))
    for given, feature_map, number in (
        (model, "softmax", 256),
        (explicit, "softmax", 256),
        (eight, "favor+", 8),
    ):
        other, _ = convert_to_performer(given, feature_map=feature_map)
        assert other.get_layer("own").projection_matrix.shape == (number, 4)


def test_features_of_each_layer_are_drawn_apart():
    model = stack(2)
    one, two = (convert_to_performer(model, seed=3)[0] for _ in range(2))
    drawn = [block.attention.projection_matrix.numpy() for block in one.blocks]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.1
    again = two.blocks[1].attention.projection_matrix
    np.testing.assert_array_equal(drawn[1], again)


def needs(option):
    known = inspect.signature(keras.layers.GroupQueryAttention).parameters
    reason = f"This Keras has no {option} in GroupQueryAttention."
    return pytest.mark.skipif(option not in known, reason=reason)


class Own(keras.layers.MultiHeadAttention):
    pass


def assert_what_stays(model, inputs, notes, **options):
    """Converts a model, and checks its outputs and which layers stay.

    Args:
        notes: dict from the names of layers that stay to words of the reason.
    """
    performer, report = says_the_same(model, inputs, **options)
    stays = {row.path.split("/")[-1]: row.note for row in report.layers if row.note}
    assert stays.keys() == notes.keys() and len(report.layers) > len(notes)
    for name, words in notes.items():
        assert words in stays[name] and "\n" not in stays[name]
        assert type(performer.get_layer(name)) is type(model.get_layer(name))
    became = {row.became for row in report.layers}
    assert became & {"PerformerAttention", "ExactAttention"} and "" in became


@needs("use_gate")
def test_what_cannot_be_replaced_stays_and_says_why():
    y = start = keras.Input((LENGTH, DIM))
    for layer in (
        attention(name="plain"),
        Own(3, 4, name="own"),
        keras.layers.GroupQueryAttention(4, 6, 3, use_gate=True, name="gate"),
        PerformerAttention(3, 4, feature_map="relu", name="relu"),
    ):
        y = layer(y, y)
    model = keras.Model(start, y)
    notes = {
        "own": "a subclass of MultiHeadAttention, which may compute something else",
        "gate": "has use_gate=True, which PerformerAttention does not support",
    }
    assert_what_stays(model, X, notes)


def test_one_quantized_layer_stays_and_others_are_converted():
    first = attention(name="first")
    start = keras.Input((LENGTH, DIM))
    model = keras.Model(start, attention(name="second")(first(start, start), start))
    first.query_dense.quantize("int8")
    assert_what_stays(model, X, {"first": "is quantized"}, convert=convert_to_softmax)


def test_attention_over_other_axes_stays():
    start = keras.Input((3, LENGTH, DIM))
    rows, all_axes, first = (
        attention(name=name, attention_axes=axes)
        for name, axes in (("rows", 2), ("all", None), ("first", 1))
    )
    y = all_axes(rows(start, start), start)
    y = first(y, y)
    x = keras.layers.Reshape((3 * LENGTH, DIM))(y)
    x = attention(name="plain", attention_axes=(1,))(x, x)
    notes = {
        "rows": "PerformerAttention attends over axis 1 of inputs with three axes: "
        "reshape the inputs of rows (MultiHeadAttention) first. Received: "
        "attention_axes=(2,)",
        "all": "all (MultiHeadAttention) first. Received: attention_axes=(1, 2)",
        "first": "query must have shape (batch, length, features)",
    }
    data = np.random.default_rng(2).normal(size=(2, 3, LENGTH, DIM))
    assert_what_stays(keras.Model(start, x), data, notes)


@pytest.mark.parametrize(
    "window", [{}, pytest.param({"sliding_window": 3}, marks=needs("sliding_window"))]
)
def test_attention_to_a_longer_sequence_stays(window):
    start, other = keras.Input((LENGTH, DIM)), keras.Input((LENGTH + 4, DIM))
    y = attention(name="own")(start, start, use_causal_mask=True)
    y = attention(name="across", **window)(y, other)
    model = keras.Model([start, other], attention(name="last")(y, y))
    memory = np.random.default_rng(2).normal(size=(2, LENGTH + 4, DIM))
    why = "sliding_window needs one key for each query" if window else "are different"
    assert_what_stays(model, [X, memory], {"across": why})
    if not window:
        _, report = convert_to_performer(model, exact_window=None)
        assert all(row.became for row in report.layers)


@pytest.mark.parametrize("length", [LENGTH, None])
def test_attention_to_another_sequence_has_no_window(length):
    """Lengths do not tell it from self-attention: they are equal, or open."""
    start, other = keras.Input((length, DIM)), keras.Input((length, DIM))
    y = attention(name="own")(start, start)
    y = attention(name="key_of_its_own")(y, keras.layers.Dense(DIM)(y), key=y)
    y = attention(name="across")(y, other)
    y = attention(name="by_name")(query=y, value=other, key=other)
    model = keras.Model([start, other], y)
    memory = np.random.default_rng(2).normal(size=X.shape)
    words = "query and value are different tensors, as in cross-attention"
    assert_what_stays(model, [X, memory], {"across": words, "by_name": words})
    again, report = convert_to_performer(model, exact_window=None)
    assert all(row.became for row in report.layers)
    across = again.get_layer("across")
    assert isinstance(across, PerformerAttention) and across.exact_window is None
    # a layer that was trained with a window stays as it was meant
    windowed = PerformerAttention(3, 4, exact_window=5, name="windowed")
    model = keras.Model([start, other], windowed(start, other))
    _, report = convert_to_performer(model, exact_window=LENGTH)
    assert [row.became for row in report.layers] == ["PerformerAttention"]


@pytest.mark.parametrize("kind", [Block, LateBlock])
def test_converted_layers_keep_their_paths(kind):
    x = start = keras.Input((LENGTH, DIM))
    for i in range(2):
        x = kind(name=f"block_{i}")(x)
    model = keras.Model(start, x)
    performer, report = convert_to_performer(model, exact_window=LENGTH)
    known = {kind.__name__: kind}
    again = keras.Model.from_config(performer.get_config(), custom_objects=known)
    paths = [row.path for row in report.layers]
    for copy in (performer, again):
        found = [x for x in all_layers(copy) if isinstance(x, PerformerAttention)]
        assert sorted(x.path for x in found) == sorted(paths)
        for layer in found:
            assert layer.query_dense.kernel.path == f"{layer.path}/query/kernel"
    assert paths[-1].startswith("block_1/")


def test_attention_with_a_mask_of_queries_stays():
    start = keras.Input((LENGTH, DIM))
    masks = keras.Input((LENGTH, LENGTH), dtype="bool")
    y = attention(name="free")(start, start)
    y = attention(name="masked")(y, y, attention_mask=masks)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    y = attention(name="of_rank_2")(y, y, attention_mask=causal)
    y = attention(name="for_all")(y, y, attention_mask=causal[LENGTH // 2][None])
    y = attention(name="of_keys")(y, y, attention_mask=causal[LENGTH // 2][None, None])
    model = keras.Model([start, masks], y)
    square = np.random.default_rng(2).normal(size=(LENGTH, LENGTH, DIM))  # B == T
    seen = np.random.default_rng(3).random((LENGTH, LENGTH, LENGTH)) < 0.7
    names = "masked", "of_rank_2", "for_all"
    notes = dict.fromkeys(names, "attention_mask must not differ by query or by head")
    assert_what_stays(model, [square, seen], notes)


@needs("sliding_window")
def test_a_sliding_window_becomes_local_attention():
    layer = keras.layers.GroupQueryAttention(4, 6, 3, sliding_window=5, name="near")
    model = graph(layer, use_causal_mask=True)
    performer, _ = says_the_same(model, X)
    local = performer.get_layer("near")
    assert isinstance(local, LocalAttention) and local.sliding_window == 5
    # the window comes from the layer
    says_the_same(model, X, convert=convert_attention, attention=LocalAttention)


def test_layers_are_chosen_by_name_or_path():
    model = stack(2)
    path = model.blocks[1].attention.path
    performer, report = convert_to_performer(model, layers=[path])
    assert [row.path for row in report.layers if row.became] == [path]
    # the end of a path suffices: copies of a model may lack its own name
    _, report = convert_to_performer(model, layers=path.partition("/")[2])
    assert [row.path for row in report.layers if row.became] == [path]
    kinds = [type(block.attention) for block in performer.blocks]
    assert kinds == [keras.layers.MultiHeadAttention, PerformerAttention]
    both, _ = convert_to_softmax(model, layers=["attention"])
    assert {type(block.attention) for block in both.blocks} == {ExactAttention}
    with pytest.raises(ValueError, match="Received: 'no_such'"):
        convert_to_performer(model, layers=["attention", "no_such"])
    # a path selects one layer, though another has the same name
    start = keras.Input((LENGTH, DIM))
    y = Block(name="block")(attention(name="attention")(start, start))
    for path in "attention", "block/attention":
        _, report = convert_to_softmax(keras.Model(start, y), layers=[path])
        assert [row.path for row in report.layers if row.became] == [path]


def test_attention_in_the_graph_of_a_class_stays():
    model = GraphOfBlocks(direct=True)
    _, report = says_the_same(model, X)
    assert [row.note for row in report.layers if not row.became] == [
        "part of the graph that GraphOfBlocks makes: convert "
        "keras.Model(model.input, model.output)"
    ]
    _, report = says_the_same(keras.Model(model.input, model.output), X)
    assert all(row.became for row in report.layers)


def test_layers_that_models_inside_share_are_copies_and_said_to_be():
    dense = keras.layers.Dense(DIM, name="of_both")
    layers = in_sequence(dense), attention(), in_sequence(dense)
    start = keras.Input((LENGTH, DIM))
    y = layers[0](start)
    model = keras.Model(start, layers[2](layers[1](y, y)))
    with pytest.warns(UserWarning, match="of_both is in several models inside"):
        says_the_same(model, X)


def test_a_layer_alone_is_converted():
    layer = attention()
    layer(X, X)
    says_the_same(layer, X, X)


def test_vocabularies_are_carried_over():
    text = keras.layers.TextVectorization(output_sequence_length=LENGTH)
    text.adapt(["one two three", "two three"])
    start = keras.Input((), dtype="string")
    y = keras.layers.Embedding(9, DIM)(text(start))
    model = keras.Model(start, attention()(y, y))
    says_the_same(model, keras.ops.convert_to_tensor(["three one"]))


class Preprocessor(keras.layers.Layer):
    """Layer that makes another in its first call, as KerasHub's do for strings."""

    packer = None

    def build(self, shape):
        self.packer = keras.layers.Rescaling(2)
        self.packer.build(shape)

    def get_build_config(self):
        return None


def test_layers_that_only_a_first_call_makes_are_refused():
    model = GraphOfBlocks()
    model.preprocessor = Preprocessor()
    model.preprocessor.build(X.shape)
    with pytest.raises(ValueError, match="whose copy has no"):
        convert_to_performer(model)


class OfTwo(keras.Model):
    """Model that Keras cannot build from its config."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention()

    def call(self, x, y):
        return self.attention(x, y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_not_made_by_its_config_or_cannot_be_replaced_is_refused():
    model = OfTwo()
    model(X, X)
    with pytest.raises(ValueError, match="define `build` for a call with several"):
        convert_to_performer(model)
    with pytest.raises(ValueError, match="exact_window must be"):
        convert_to_performer(graph(attention()), exact_window=0)
    with pytest.raises(ValueError, match="(?s)with\n.*own .*may compute something"):
        convert_to_performer(graph(Own(3, 4, name="own")))


def test_what_is_frozen_stays_frozen():
    start, layer = keras.Input((LENGTH, DIM)), attention()
    block = Block()
    model = in_sequence(keras.Model(start, layer(start, start)), block)
    model.layers[0].trainable = False
    block.again["dense"][0].trainable = False
    block.attention.key_dense.trainable = False
    performer, _ = convert_to_performer(model)
    dense = "query", "value", "attention_output"
    names = {f"{name}/{weight}" for name in dense for weight in ("kernel", "bias")}
    trained = {"/".join(v.path.split("/")[-2:]) for v in performer.trainable_variables}
    assert trained == names | {"far_gain/log_gain"}
    assert len(performer.trainable_variables) == 7


def test_lora_of_attention_becomes_part_of_its_kernels():
    model = graph(attention(name="attention"))
    dense = model.get_layer("attention").query_dense
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones_like(dense.lora_kernel_b))
    _, report = says_the_same(model, X, convert=convert_to_softmax)
    assert report.layers[0].note == "its LoRA is part of its kernels now"


@pytest.mark.parametrize("quantized", [False, True])
def test_lora_beside_attention_goes_on(quantized):
    model = graph(attention(name="attention"))
    dense = model.layers[-1]
    dense.enable_lora(2, lora_alpha=6)
    dense.lora_kernel_b.assign(np.ones((2, DIM)))
    if quantized:
        dense.quantize("int8")
    new, _ = says_the_same(model, X, convert=convert_to_softmax)
    own = new.layers[-1]
    assert own.lora_alpha == 6
    for weight, given in zip(own.weights, dense.weights, strict=True):
        np.testing.assert_array_equal(weight, given)
    assert len(own.trainable_weights) == len(dense.trainable_weights) == 3


# -- Other attention.


def alone(**call):
    start = keras.Input((LENGTH, DIM))
    return keras.Model(start, attention(name="own")(start, start, **call))


# Options with which each kind of attention sees all keys.
ALL = {
    LocalAttention: dict(sliding_window=LENGTH),
    zoo.BigBirdAttention: dict(block_size=LENGTH),
    zoo.LongformerAttention: dict(sliding_window=2, num_global_tokens=LENGTH),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_what_sees_everything_says_the_same(kind, causal):
    model = alone(use_causal_mask=causal)
    other, report = convert_attention(model, kind, **ALL[kind])
    assert [row.became for row in report.layers] == [kind.__name__]
    other.save("model.keras")
    for each in (other, keras.models.load_model("model.keras")):
        np.testing.assert_allclose(each(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "kind, options",
    [
        (LocalAttention, dict(sliding_window=3, rotary=True)),
        (zoo.LongformerAttention, dict(sliding_window=3, rotary=True)),
        (LinearTransformerAttention, {}),
        (PerformerAttention, dict(exact_window=3, initial_log_gain=(-4.0, 2.0, 0.0))),
        (None, dict(exact_window=4, num_random_features=16, feature_map="favor+")),
    ],
)
def test_a_converted_layer_is_the_one_that_users_would_make(kind, options):
    """The new layer has the old weights and causality, and the options of the call."""
    model = alone(use_causal_mask=True)
    if kind is None:
        other, _ = convert_to_performer(model, seed=5, **options)
    else:
        other, _ = convert_attention(model, kind, seed=5, **options)
    layer = (kind or PerformerAttention)(3, 4, causal=True, seed=5, **options)
    layer.build(X.shape)
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        given = dense_layer(model.get_layer("own"), name).get_weights()
        getattr(layer, name).set_weights(given)
        copied = getattr(layer, f"_{name.replace('_dense', '')}_global_dense", None)
        if copied is not None:
            copied.set_weights(given)
    np.testing.assert_allclose(other(X), layer(X), rtol=1e-4, atol=1e-5)
    assert np.abs(other(X) - model(X)).max() > 1e-3


UNFIT = "(?s)the weights do not fit.*"


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (zoo.ReformerAttention, {}, UNFIT + "ReformerAttention has no key_dense"),
        (zoo.SynthesizerAttention, dict(max_length=LENGTH), UNFIT + "has no key_dense"),
        (zoo.LinformerAttention, dict(max_length=LENGTH), UNFIT + "Attention has own/"),
        (
            zoo.SinkhornAttention,
            dict(block_size=4, max_length=LENGTH),
            UNFIT + "SinkhornAttention has own/",
        ),
        # the error names the heads of the layer
        (LocalAttention, dict(sliding_window=3, rotary=(2, 2, 2)), "key_dim=4"),
        (LocalAttention, dict(sliding_window=3, num_key_value_heads=2), "num_heads=3"),
        (LocalAttention, dict(sliding_window=0), "sliding_window must.*window=0"),
        (LocalAttention(1, 1, sliding_window=3), {}, "a subclass of AttentionLayer"),
        ("local", {}, "a subclass of AttentionLayer"),
        (keras.layers.Dense, {}, "a subclass of AttentionLayer"),
    ],
)
def test_what_does_not_fit_is_named(kind, options, words):
    with pytest.raises(ValueError, match=words):
        convert_attention(alone(), kind, **options)


def test_an_option_that_is_required_is_asked_for():
    with pytest.raises(TypeError, match="required.*'sliding_window'"):
        convert_attention(alone(), LocalAttention)
