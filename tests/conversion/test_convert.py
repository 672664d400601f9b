"""Models converted at all depths say what they said, where everything is near."""

import inspect

import keras
import numpy as np
import pytest

import keras_performer
from keras_performer import convert_to_performer, convert_to_softmax
from keras_performer.conversion import convert_attention
from keras_performer.layers import ExactAttention, LocalAttention, PerformerAttention
from keras_performer.layers.keras_privates import all_layers

# Keras 3.10 says so of every functional model that it makes of a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM = 19, 6


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(2, LENGTH, DIM)).astype("float32")


def attention(**options):
    given = dict(num_heads=3, key_dim=4, bias_initializer="normal", **options)
    return keras.layers.MultiHeadAttention(**given)


def graph(layer, **call):
    start = keras.Input((LENGTH, DIM))
    return keras.Model(start, keras.layers.Dense(DIM)(layer(start, start, **call)))


class Block(keras.layers.Layer):
    """Attention as an attribute, and the same in a dict of tuples."""

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
    """Makes its attention when it is built."""

    def build(self, shape):
        self.first, self.second = attention(), attention()
        for layer in (self.first, self.second):
            layer.build(shape, shape)

    def call(self, x):
        return self.second(x, self.first(x, x))


class Stack(keras.Model):
    """Layers in lists, and a model inside."""

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

    def first_attention(self):
        return self.blocks[0].attention


@keras.saving.register_keras_serializable(package="test_convert")
class GraphOfBlocks(keras.Model):
    """A functional model by a class of its own, as those of KerasHub are."""

    def __init__(self, direct=False, **kwargs):
        start = keras.Input((LENGTH, DIM))
        y = LateBlock()(start)
        if direct:
            y = attention()(y, y)
        super().__init__(start, Block()(y), **kwargs)
        self.direct = direct

    def get_config(self):
        return {"direct": self.direct, "name": self.name}


CLASSES = {"Block": Block, "LateBlock": LateBlock, "Stack": Stack}


def in_models():
    """A model, and how many attention layers it has."""
    yield "grouped", lambda: graph(keras.layers.GroupQueryAttention(4, 6, 3)), 1
    yield "twice in a graph", lambda: shared_in_a_graph(), 1
    yield "nested", lambda: in_sequence(graph(attention()), Block(0.3)), 2
    yield "subclass", lambda: Stack(1), 5
    yield "subclass of a graph", GraphOfBlocks, 3


def in_sequence(*layers):
    return keras.Sequential([keras.Input((LENGTH, DIM)), *layers])


def shared_in_a_graph():
    start, layer = keras.Input((LENGTH, DIM)), attention()
    return keras.Model(start, layer(layer(start, start), start))


MODELS = {name: (make, number) for name, make, number in in_models()}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_saved_and_comes_back(name, x, tmp_path):
    make, number = MODELS[name]
    model = make()
    expected, weights = model(x).numpy(), [w.copy() for w in model.get_weights()]
    performer, report = convert_to_performer(
        model, exact_window=3, num_random_features=8
    )
    assert [row.became for row in report.layers] == ["PerformerAttention"] * number
    assert isinstance(performer, type(model)) and performer is not model
    estimate = performer(x).numpy()
    assert np.abs(estimate - expected).max() > 1e-3
    performer.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=CLASSES)
    np.testing.assert_allclose(loaded(x), estimate, rtol=1e-5, atol=1e-6)
    assert len(loaded.weights) == len(performer.weights)
    # the weights are those of the model, which is as it was
    softmax, report = convert_to_softmax(loaded)
    np.testing.assert_allclose(softmax(x), expected, rtol=1e-4, atol=1e-5)
    assert {row.was for row in report.layers} == {"PerformerAttention"}
    np.testing.assert_array_equal(model(x), expected)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_way_back_trains_with_the_dropout_of_the_model(x):
    """With the same seed the weights that are dropped are the same."""
    model = graph(attention(dropout=0.4, seed=3, name="dropping"))
    performer, _ = convert_to_performer(model, seed=3)
    softmax, _ = convert_to_softmax(performer)
    expected = model(x, training=True)
    np.testing.assert_allclose(softmax(x, training=True), expected, atol=1e-5)
    assert np.abs(model(x) - expected).max() > 0.1


def test_a_window_over_everything_changes_nothing(x):
    model = Stack(1)
    expected = model(x)
    performer, _ = convert_to_performer(model, exact_window=LENGTH)
    np.testing.assert_allclose(performer(x), expected, rtol=1e-4, atol=1e-5)
    attention = performer.first_attention()
    assert attention is performer.blocks[0].again["same"][0]
    assert sum(layer is attention for layer in all_layers(performer)) == 1
    assert not any(
        isinstance(layer, keras.layers.MultiHeadAttention)
        for layer in all_layers(performer)
    )


def test_a_converted_model_trains(x):
    model = graph(attention(name="attention"))
    model.compile("adam", "mse", run_eagerly=True)
    performer, _ = convert_to_performer(model, exact_window=3, num_random_features=8)
    assert performer.run_eagerly
    kernel = performer.get_layer("attention").query_dense.kernel
    before = kernel.numpy()
    performer.fit(x, np.ones((2, LENGTH, DIM)), verbose=0)
    assert np.abs(kernel.numpy() - before).max() > 1e-5


def test_a_converted_layer_is_the_one_that_users_would_make(x):
    model = graph(attention(name="its_name", dropout=0.1), use_causal_mask=True)
    options = dict(exact_window=4, num_random_features=16, feature_map="favor+")
    performer, _ = convert_to_performer(model, **options, seed=5)
    layer = PerformerAttention(3, 4, causal=True, seed=5, **options)
    layer(x)
    old = model.get_layer("its_name")
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(layer, name).set_weights(getattr(old, name).get_weights())
    expected = model.layers[-1](layer(x))
    np.testing.assert_allclose(performer(x), expected, rtol=1e-4, atol=1e-5)
    assert performer.get_layer("its_name").dropout == 0.1


def test_the_default_number_of_features_goes_with_every_map(x):
    model = graph(attention(name="own"))
    taylor, _ = convert_to_performer(model, feature_map="taylor")
    given, _ = convert_to_performer(
        model, feature_map="taylor", num_random_features=None
    )
    np.testing.assert_array_equal(taylor(x), given(x))
    assert taylor.get_layer("own").projection_matrix is None
    with pytest.raises(ValueError, match="has no random features"):
        convert_to_performer(model, feature_map="taylor", num_random_features=8)
    softmax, _ = convert_to_performer(model)
    assert softmax.get_layer("own").projection_matrix.shape == (256, 4)


def test_a_number_of_features_does_not_go_with_another_map(x):
    """Converts a converted layer again, without a number from the caller."""
    number = 8
    model, _ = convert_to_performer(
        graph(attention(name="own")), num_random_features=number, exact_window=3
    )
    taylor, _ = convert_attention(model, PerformerAttention, feature_map="taylor")
    expected, _ = convert_to_performer(model, feature_map="taylor", exact_window=3)
    np.testing.assert_array_equal(taylor(x), expected(x))
    explicit, _ = convert_to_performer(
        model, feature_map="taylor", num_random_features=None, exact_window=3
    )
    back, _ = convert_attention(explicit, PerformerAttention, feature_map="softmax")
    assert back.get_layer("own").projection_matrix.shape == (256, 4)
    favor, _ = convert_attention(model, PerformerAttention, feature_map="favor+")
    assert favor.get_layer("own").projection_matrix.shape == (number, 4)


def test_features_of_each_layer_are_drawn_apart(x):
    model = Stack(2)
    model(x)
    one, two = (convert_to_performer(model, seed=3)[0] for _ in range(2))
    drawn = [block.attention.projection_matrix.numpy() for block in one.blocks]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.1
    again = two.blocks[1].attention.projection_matrix
    np.testing.assert_array_equal(drawn[1], again)


def test_exact_models_of_ours_generate_when_they_are_converted():
    model = keras_performer.PerformerLM(
        11,
        max_length=40,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        attention="exact",
        seed=0,
    )
    performer, _ = convert_to_performer(model, exact_window=40)
    prompt = np.array([[1, 2, 3]])
    tokens = keras_performer.generate(performer, prompt, 30, temperature=0)
    np.testing.assert_array_equal(tokens[:, 3:], np.argmax(model(tokens), -1)[:, 2:-1])


def needs(option):
    known = inspect.signature(keras.layers.GroupQueryAttention).parameters
    reason = f"This Keras has no {option} in GroupQueryAttention."
    return pytest.mark.skipif(option not in known, reason=reason)


class Own(keras.layers.MultiHeadAttention):
    pass


@needs("use_gate")
def test_what_cannot_be_replaced_stays_and_says_why(x):
    start = keras.Input((LENGTH, DIM))
    layers = [
        attention(name="plain"),
        Own(3, 4, name="own"),
        keras.layers.GroupQueryAttention(4, 6, 3, use_gate=True, name="gate"),
        PerformerAttention(3, 4, feature_map="relu", name="relu"),
    ]
    y = start
    for layer in layers:
        y = layer(y, y)
    model = keras.Model(start, y)
    performer, report = convert_to_performer(model, exact_window=LENGTH)
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)
    became = {row.path: row.became for row in report.layers}
    assert became == {"plain": "PerformerAttention", "own": "", "gate": ""}
    text = str(report)
    assert "a subclass of MultiHeadAttention, whose call may be another" in text
    assert "has use_gate=True, which PerformerAttention has not" in text


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
    model = keras.Model(start, x)
    notes = {
        "rows": "rows (MultiHeadAttention) attends over the axes (2,) of its inputs, "
        "PerformerAttention over axis 1 of three: reshape",
        "all": "all (MultiHeadAttention) attends over the axes (1, 2) of its inputs",
        "first": "query must have shape (batch, length, features)",
    }
    data = np.random.default_rng(2).normal(size=(2, 3, LENGTH, DIM))
    assert_what_stays(model, data, notes, 3 * LENGTH)


def assert_what_stays(model, inputs, notes, exact_window=2 * LENGTH):
    """Converts a model, in which all layers but some compute what they did.

    Args:
        notes: dict of names of the layers that stay to words of the reason.
    """
    performer, report = convert_to_performer(model, exact_window=exact_window)
    stays = {row.path.split("/")[-1]: row.note for row in report.layers if row.note}
    assert stays.keys() == notes.keys() and len(report.layers) > len(notes)
    for name, words in notes.items():
        assert stays[name].startswith(words)
        assert "\n" not in stays[name]
    assert {row.became for row in report.layers} >= {"", "PerformerAttention"}
    np.testing.assert_allclose(performer(inputs), model(inputs), rtol=1e-4, atol=1e-5)
    return performer


@pytest.mark.parametrize(
    "window", [{}, pytest.param({"sliding_window": 3}, marks=needs("sliding_window"))]
)
def test_attention_to_a_longer_sequence_stays(window, x):
    start, other = keras.Input((LENGTH, DIM)), keras.Input((LENGTH + 4, DIM))
    y = attention(name="own")(start, start, use_causal_mask=True)
    y = attention(name="across", **window)(y, other)
    model = keras.Model([start, other], attention(name="last")(y, y))
    memory = np.random.default_rng(2).normal(size=(2, LENGTH + 4, DIM))
    name = "sliding_window" if window else "exact_window"
    notes = {"across": f"{name} needs one key for each query"}
    performer = assert_what_stays(model, [x, memory], notes)
    assert type(performer.get_layer("across")) is keras.layers.MultiHeadAttention
    if not window:
        _, report = convert_to_performer(model, exact_window=None)
        assert all(row.became for row in report.layers)


def test_attention_with_a_mask_of_queries_stays(x):
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
def test_a_sliding_window_becomes_local_attention(x):
    layer = keras.layers.GroupQueryAttention(4, 6, 3, sliding_window=5, name="near")
    model = graph(layer, use_causal_mask=True)
    performer, report = convert_to_performer(model)
    assert [row.became for row in report.layers] == ["LocalAttention"]
    assert performer.get_layer("near").sliding_window == 5
    assert isinstance(performer.get_layer("near"), LocalAttention)
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)
    same, _ = convert_attention(model, LocalAttention)  # with the window of the layer
    np.testing.assert_allclose(same(x), model(x), rtol=1e-4, atol=1e-5)


def test_layers_are_chosen_by_name_or_path(x):
    model = Stack(2)
    model(x)
    path = model.blocks[1].attention.path
    performer, report = convert_to_performer(model, layers=[path], exact_window=LENGTH)
    assert [row.path for row in report.layers if row.became] == [path]
    kinds = [type(block.attention) for block in performer.blocks]
    assert kinds == [keras.layers.MultiHeadAttention, PerformerAttention]
    both, _ = convert_to_softmax(model, layers=["attention"])
    assert {type(block.attention) for block in both.blocks} == {ExactAttention}
    with pytest.raises(ValueError, match="Received: 'no_such'"):
        convert_to_performer(model, layers=["attention", "no_such"])


def test_a_path_is_that_of_one_layer_though_others_have_its_name(x):
    start = keras.Input(x.shape[1:])
    y = Block(name="block")(attention(name="attention")(start, start))
    model = keras.Model(start, y)
    for path in "attention", "block/attention":
        _, report = convert_to_softmax(model, layers=[path])
        assert [row.path for row in report.layers if row.became] == [path]


def test_attention_in_the_graph_of_a_class_stays(x):
    model = GraphOfBlocks(direct=True)
    performer, report = convert_to_performer(model, exact_window=LENGTH)
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)
    stayed = [row for row in report.layers if not row.became]
    assert [row.note for row in stayed] == [
        "part of the graph that GraphOfBlocks makes: convert "
        "keras.Model(model.input, model.output)"
    ]
    whole = keras.Model(model.input, model.output)
    performer, report = convert_to_performer(whole, exact_window=LENGTH)
    assert all(row.became for row in report.layers)
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)


def test_layers_that_models_inside_share_are_copies_and_said_to_be(x):
    dense = keras.layers.Dense(DIM, name="of_both")
    layers = in_sequence(dense), attention(), in_sequence(dense)
    y = start = keras.Input((LENGTH, DIM))
    y = layers[0](y)
    model = keras.Model(start, layers[2](layers[1](y, y)))
    with pytest.warns(UserWarning, match="of_both stands in several models inside"):
        performer, _ = convert_to_performer(model, exact_window=LENGTH)
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_layer_alone_is_converted(x):
    layer = attention()
    layer(x, x)
    performer, _ = convert_to_performer(layer, exact_window=LENGTH)
    np.testing.assert_allclose(performer(x, x), layer(x, x), rtol=1e-4, atol=1e-5)


def test_what_is_no_trained_model_is_refused(x):
    with pytest.raises(ValueError, match="call it on data first. Received: Stack"):
        convert_to_performer(Stack(1))
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="two")])
    with pytest.raises(ValueError, match="Sequential .* without attention"):
        convert_to_performer(dense)
    with pytest.raises(ValueError, match="exact_window must be"):
        convert_to_performer(graph(attention()), exact_window=0)
    model = graph(Own(3, 4, name="own"))
    with pytest.raises(ValueError, match="(?s)where.*own .*whose call may be another"):
        convert_to_performer(model)


class Sparing(keras.layers.Layer):
    """Keras makes its config, without a name; nothing is there before it is built."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = None
        self.more = None

    def build(self, shape):
        self.attention = attention()
        self.more = [attention()]
        for layer in (self.attention, *self.more):
            layer.build(shape, shape)

    def call(self, x):
        return self.more[0](self.attention(x, x), x)


class Dropout(Sparing):
    """Named like a layer of Keras."""


@pytest.mark.parametrize("make, sequential", [(Sparing, False), (Dropout, True)])
def test_layers_without_a_config_of_their_own(make, sequential, x):
    start = keras.Input((LENGTH, DIM))
    dropout = keras.layers.Dropout(0.1)
    if sequential:
        model = keras.Sequential([start, make(), dropout])
    else:
        model = keras.Model(start, dropout(make()(start)))
    performer, report = convert_to_performer(model, exact_window=LENGTH)
    assert [row.became for row in report.layers] == ["PerformerAttention"] * 2
    np.testing.assert_allclose(performer(x), model(x), rtol=1e-4, atol=1e-5)
    made = performer.layers[-2]
    assert isinstance(made, make)
    assert {type(made.attention), type(made.more[0])} == {PerformerAttention}


def test_what_is_frozen_stays_frozen(x):
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


def test_vocabularies_are_carried_over():
    text = keras.layers.TextVectorization(output_sequence_length=LENGTH)
    text.adapt(["one two three", "two three"])
    start = keras.Input((), dtype="string")
    y = keras.layers.Embedding(9, DIM)(text(start))
    model = keras.Model(start, attention()(y, y))
    performer, _ = convert_to_performer(model, exact_window=LENGTH)
    words = keras.ops.convert_to_tensor(["three one"])
    np.testing.assert_allclose(performer(words), model(words), rtol=1e-4, atol=1e-5)


def test_losses_of_ones_own_are_kept(x):
    def loss_of_mine(y, output):
        return keras.ops.mean((y - output) ** 2, -1)

    class MetricOfMine(keras.metrics.MeanSquaredError):
        pass

    model = graph(attention())
    model.compile("sgd", loss_of_mine, metrics=[MetricOfMine()])
    performer, _ = convert_to_performer(model, exact_window=LENGTH)
    assert performer.loss is loss_of_mine
    assert performer.optimizer is not model.optimizer


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_attention_stays(x):
    model = graph(attention())
    model.quantize("int8")
    with pytest.raises(ValueError, match="(?s)where.*is quantized: take its weights"):
        convert_to_performer(model)


class OfTwo(keras.Model):
    """Keras cannot build it from its config."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention()

    def call(self, x, y):
        return self.attention(x, y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_that_their_config_does_not_make_are_refused(x):
    model = OfTwo()
    model(x, x)
    with pytest.raises(ValueError, match="define `build` for a call with several"):
        convert_to_performer(model)


def test_one_quantized_layer_stays_and_others_are_converted(x):
    first = attention(name="first")
    start = keras.Input((LENGTH, DIM))
    model = keras.Model(start, attention(name="second")(first(start, start), start))
    first.query_dense.quantize("int8")
    new, report = convert_to_softmax(model)
    assert "first" in str(report) and "is quantized" in str(report)
    assert isinstance(new.get_layer("second"), ExactAttention)
    np.testing.assert_allclose(new(x), model(x), rtol=1e-5, atol=1e-5)


def test_lora_of_attention_becomes_part_of_its_kernels(x):
    model = graph(attention(name="attention"))
    dense = model.get_layer("attention").query_dense
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones_like(dense.lora_kernel_b))
    new, report = convert_to_softmax(model)
    np.testing.assert_allclose(new(x), model(x), rtol=1e-5, atol=1e-5)
    assert report.layers[0].note == "its LoRA is part of its kernels now"


@pytest.mark.parametrize("quantized", [False, True])
def test_lora_beside_attention_goes_on(quantized, x):
    model = graph(attention(name="attention"))
    dense = model.layers[-1]
    dense.enable_lora(2, lora_alpha=6)
    dense.lora_kernel_b.assign(np.ones((2, DIM)))
    if quantized:
        dense.quantize("int8")
    new, _ = convert_to_softmax(model)
    own = new.layers[-1]
    assert own.lora_alpha == 6
    for weight, given in zip(own.weights, dense.weights, strict=True):
        np.testing.assert_array_equal(weight, given)
    np.testing.assert_allclose(new(x), model(x), rtol=1e-5, atol=1e-5)
    trained = [len(x.trainable_weights) for x in (own, dense)]
    assert trained[0] == trained[1] == 3
