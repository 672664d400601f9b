"""PerformerLM(recompute=...): the numbers of plain training, from less memory."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, RedrawFeatures
from keras_performer.layers import performer
from keras_performer.layers.embeddings import TokenEmbedding
from tests.models.token_models import (
    IDS,
    MODES,
    RANDOM,
    TARGETS,
    WEIGHTS,
    loss_and_gradients,
    small_model,
)


def assert_alike(results, expected, tolerance=1e-5):
    assert float(results[0]) == pytest.approx(float(expected[0]), rel=tolerance)
    for result, wanted in zip(results[1], expected[1], strict=True):
        limit = tolerance * max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(result, wanted, atol=limit)


@functools.cache
def plain_gradients(length, **options):
    return gradients(None, length, **options)


def gradients(recompute, length, **options):
    keras.config.set_floatx("float64")
    model = small_model(recompute, dtype="float64", **options)
    return loss_and_gradients(model, IDS[:, :length], TARGETS[:, :length])


@pytest.mark.slow
@pytest.mark.parametrize(
    "recompute, causal, length, feature_map",
    [
        ("block", True, 11, "softmax"),
        ("network", True, 8, "relu"),
        ("network", True, 11, "softmax"),
        ("block", False, 11, "relu"),
        ("network", True, 3, "softmax"),
    ],
)
def test_gradients_are_those_of_plain_training(recompute, causal, length, feature_map):
    """Chunks of 4 tokens: with a rest of 3, without any, and a single chunk."""
    options = dict(causal=causal, feature_map=feature_map)
    results = gradients(recompute, length, **options)
    assert_alike(results, plain_gradients(length, **options), 1e-10)


def with_gains(model):
    """Far keys count otherwise than at first, in each head and block."""
    for block in model.blocks:
        block.attention.assign_log_gain([-1.0, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("length, window", [(11, 10), (8, 3)])
def test_a_window_to_both_sides_goes_beyond_chunks(length, window):
    """Also one of several chunks; keys of the next are exact, or far, as without."""
    options = dict(causal=False, exact_window=window, prepare=with_gains, num_layers=1)
    results = gradients("block", length, **options)
    expected = plain_gradients(length, **options)
    # the gains are float32 whatever the policy
    assert_alike(results, expected, 1e-5)
    double = (
        (loss, [g for g in found if g.dtype == tf.float64])
        for loss, found in (results, expected)
    )
    assert_alike(*double, 1e-10)
    if window > 1:
        other = plain_gradients(length, **{**options, "exact_window": window - 1})
        assert abs(float(results[0] - other[0])) > 1e-6


def a_whole_training(recompute, jit_compile):
    """Losses, metrics and redraws."""
    # of more blocks, the gradients' tests
    model = small_model(recompute, num_layers=1, feature_map="relu")
    model.run_eagerly, model.jit_compile = False, jit_compile
    ids, targets, weights = (x[:, :8] for x in (IDS, TARGETS, WEIGHTS))
    data = dict(x=ids, y=targets, batch_size=2, sample_weight=weights, verbose=0)
    redraw = RedrawFeatures(2)
    history = model.fit(epochs=2, shuffle=False, callbacks=[redraw], **data).history
    assert int(model.blocks[0].attention.redraw_count.numpy()) == 2
    return history


@pytest.mark.slow
def test_fit_is_plain_keras():
    results = a_whole_training("network", jit_compile=True)
    expected = a_whole_training(None, jit_compile=False)
    assert {"loss", "accuracy"} == set(results) == set(expected)
    for name, values in results.items():
        np.testing.assert_allclose(
            values, expected[name], rtol=1e-5, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("recompute", MODES)
def test_evaluation_and_predictions_are_plain_keras(recompute):
    found = []
    for mode in (recompute, None):
        model = small_model(mode, num_layers=1)
        loss, accuracy = model.evaluate(IDS, TARGETS, batch_size=2, verbose=0)
        found.append([loss, accuracy, model.predict(IDS[:1], verbose=0)])
    for result, wanted in zip(*found):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


REPEATED = RANDOM.integers(0, 3, (2, 11))


def trained_weights(recompute):
    keras.config.set_floatx("float64")
    small = dict(feature_map="relu", num_layers=1)
    model = small_model(recompute, dtype="float64", **small)
    optimizer = keras.optimizers.Adam(0.01, clipnorm=0.01)
    model.compile(optimizer, model.loss, run_eagerly=True)
    model.fit(REPEATED, REPEATED, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.slow
def test_optimizers_see_the_same_gradients():
    """Also of tokens that repeat, whose rows an optimizer would square one by one."""
    results, expected = (trained_weights(r) for r in ("block", None))
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("recompute, causal", [("network", True), ("block", False)])
def test_a_chunk_that_is_computed_again_drops_the_same(recompute, causal):
    """With dropout the gradient is the slope of the loss, seeds being equal."""
    keras.config.set_floatx("float64")
    model = small_model(recompute, dropout=0.3, causal=causal, dtype="float64")
    weights = {id(w) for w in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    start = [v.numpy() for v in seeds]
    assert len(seeds) == 5  # of the embedding, and two of each block

    def again(function):
        for seed, value in zip(seeds, start):
            seed.assign(value)
        return function(model)

    _, gradients = again(loss_and_gradients)
    moved = [v.numpy() for v in seeds]
    assert all((a != b).any() for a, b in zip(start, moved))
    directions = [RANDOM.standard_normal(g.shape) for g in gradients]
    losses = []
    for step in (1e-6, -2e-6):
        for weight, direction in zip(model.trainable_weights, directions):
            weight.assign_add(step * direction)
        losses.append(float(again(loss_and_gradients)[0]))
    slope = (losses[0] - losses[1]) / 2e-6
    expected = sum(np.sum(g * d) for g, d in zip(gradients, directions))
    assert slope == pytest.approx(expected, rel=1e-5)
    # other seeds, other values dropped
    assert float(loss_and_gradients(model)[0]) != pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("causal, window", [(True, None), (False, 3)])
def test_a_custom_loop_may_call_the_model(causal, window):
    """`recompute="block"` acts there too, and knows padding."""
    options = dict(causal=causal, exact_window=window, num_layers=1)
    mask = np.arange(11) < np.array([[11], [6], [9], [1]])

    def outputs_and_gradients(model):
        with tf.GradientTape() as tape:
            logits = model(IDS, mask=mask, training=True)
            loss = tf.reduce_sum(logits**2)
        gradients = tape.gradient(loss, model.trainable_weights)
        return loss, [logits, *map(tf.convert_to_tensor, gradients)]

    expected = outputs_and_gradients(small_model(**options))
    assert_alike(outputs_and_gradients(small_model("block", **options)), expected)


@functools.cache
def of_dtype(dtype, recompute=None):
    return loss_and_gradients(small_model(recompute, dtype=dtype))


@pytest.mark.parametrize("recompute", MODES)
def test_bfloat16_is_as_far_from_float32_as_without(recompute):
    _, exact = of_dtype("float32")

    def distance(recompute):
        _, gradients = of_dtype("mixed_bfloat16", recompute)
        return [
            np.linalg.norm(g - e) / np.linalg.norm(e)
            for g, e in zip(gradients, exact)
            if np.abs(e).max() > 1e-4
        ]

    plain, chunked = distance(None), distance(recompute)
    assert 1e-3 < np.median(plain) < 0.1
    assert np.median(chunked) < 1.2 * np.median(plain)
    assert np.max(chunked) < 1.2 * np.max(plain)


@pytest.mark.parametrize("recompute", MODES)
def test_bfloat16_rounds_neither_sums_over_chunks_nor_what_is_float32(recompute):
    """The logits' weights are float32; a bfloat16 sum of chunks is 1e-3 away."""
    loss, gradients = of_dtype("mixed_bfloat16", recompute)
    wanted, expected = of_dtype("mixed_bfloat16")
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for result, gradient in zip(gradients[-2:], expected[-2:]):  # of the logits
        np.testing.assert_allclose(result, gradient, atol=1e-6)


@pytest.mark.slow
def test_chunks_so_long_that_attention_is_compiled(two_threads, monkeypatch):
    """In a graph `PerformerAttention` compiles long chunks by itself, in the loop."""
    monkeypatch.setattr(performer, "MIN_COMPILED_LENGTH", 5)
    # no divisor makes chunks alike: 6, 6 and 5
    ids, targets = RANDOM.integers(0, 11, (2, 1, 17))
    options = dict(max_length=20, chunk_size=6, num_layers=1, feature_map="relu")
    model = small_model("network", **options)
    step = tf.function(lambda: loss_and_gradients(model, ids, targets))
    functions = step.get_concrete_function().graph.as_graph_def().library.function
    assert any(f.attr["_XlaMustCompile"].b for f in functions)
    expected = loss_and_gradients(small_model(**options), ids, targets)
    assert_alike(step(), expected)


class TiedHead(keras.layers.Layer):
    """Logits from the table of an embedding, and a weight of its own that scales."""

    def __init__(self, embedding):
        super().__init__(autocast=False)
        self.embedding = embedding

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        table = tf.cast(self.embedding.embeddings, x.dtype)
        logits = tf.cast(tf.matmul(x, table, transpose_b=True), "float32")
        return logits * tf.convert_to_tensor(self.scale)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 11)


def tied(vocabulary_size, dtype=None, **options):
    embedding = TokenEmbedding(11, 8, dtype=dtype)
    options.update(embedding=embedding, head=TiedHead(embedding))
    return PerformerLM(vocabulary_size, dtype=dtype, **options)


def lora(model):
    block = model.blocks[0]
    for layer in (block.attention.query_dense, block.expand, model.embedding):
        layer.enable_lora(2)


def frozen(model):
    model.blocks[0].trainable = model.norm.trainable = False


def regularized(model):
    model.blocks[0].expand.kernel.regularizer = keras.regularizers.L2(0.1)


CHANGES = {
    "lora": dict(prepare=lora),
    "frozen": dict(prepare=frozen),
    "regularized": dict(prepare=regularized),
    "tied": dict(cls=tied),
    "tied_bfloat16": dict(cls=tied, dtype="mixed_bfloat16"),
    "unprojected": dict(feature_map="sigmoid", num_random_features=None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name, recompute", [*zip(CHANGES, 3 * MODES)])
def test_changed_models(name, recompute):
    tolerance = 3e-2 if name == "tied_bfloat16" else 1e-5
    results, expected = (
        loss_and_gradients(small_model(r, **CHANGES[name])) for r in (recompute, None)
    )
    assert_alike(results, expected, tolerance)


class AddsALoss(TokenEmbedding):
    def call(self, inputs):
        x = super().call(inputs)
        self.add_loss(tf.reduce_mean(x**2))
        return x


class Counts(keras.layers.Dense):
    def build(self, input_shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
        super().build(input_shape)

    def call(self, x):
        self.count.assign_add(1.0)
        return super().call(x)


@pytest.mark.parametrize("recompute", MODES)
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: dict(embedding=AddsALoss(11, 8)), "Received: 1 losses"),
        (lambda: dict(head=Counts(11)), r"updates of \['.*counts.*/variable'"),
    ],
)
def test_what_calls_do_on_the_way_is_not_lost_silently(recompute, make, message):
    model = small_model(recompute, **make())
    with pytest.raises(ValueError, match=message):
        model.fit(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize("recompute", MODES)
def test_what_would_be_lost_or_cut_is_refused(recompute):
    model = small_model(recompute)
    # before they are cut, as XLA leaves out checks of values
    long = np.zeros((2, 20), "int32")
    with pytest.raises(ValueError, match="at most max_length=16 .*2, 20"):
        model.fit(long, long, verbose=0)
    # not cut to the inputs' length, nor left to an operation of TensorFlow
    message = r"y must have a target for each token .*\(4, 11, .*Received: .*\(4,"
    for method in (model.fit, model.evaluate):
        for shape in ((4, 14), (4, 9), (4, 9, 1), (4,)):
            with pytest.raises(ValueError, match=message):
                method(IDS, np.zeros(shape, "int32"), verbose=0)
    model.blocks[1].expand.activity_regularizer = keras.regularizers.L2(0.1)
    with pytest.raises(ValueError, match="an activity regularizer"):
        model.fit(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize(
    "message, options",
    [
        ('must be None, "block" or "network". Received', dict(recompute="blocks")),
        ("needs causal=True", dict(recompute="network", causal=False)),
    ],
)
def test_bad_arguments_raise(message, options):
    with pytest.raises(ValueError, match=message):
        small_model(**options)


@pytest.mark.parametrize("lengths", [(11, None), (None, 11)])
def test_lengths_must_be_known(lengths):
    data = tf.data.Dataset.from_generator(
        lambda: [(IDS, TARGETS)],
        output_signature=tuple(tf.TensorSpec((4, n), tf.int32) for n in lengths),
    )
    with pytest.raises(ValueError, match="known length. Received: .*4, None"):
        model = small_model("network")
        model.run_eagerly = False
        model.fit(data.repeat(), steps_per_epoch=1, verbose=0, shuffle=False)


def test_a_saved_model_recomputes(tmp_path):
    model = small_model("network", num_layers=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.recompute == "network"
    assert_alike(loss_and_gradients(loaded), loss_and_gradients(model), 1e-6)
