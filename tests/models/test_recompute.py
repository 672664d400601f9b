"""PerformerLM(recompute=...): the numbers of plain training, with less memory."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, RedrawFeatures
from keras_performer.layers import performer
from keras_performer.layers.embeddings import TokenEmbedding
from tests.models.kinds import KINDS, pairs
from tests.models.token_models import (
    IDS,
    MODES,
    RANDOM,
    TARGETS,
    WEIGHTS,
    assert_close,
    loss_and_gradients,
    small_model,
)


class TiedHead(keras.layers.Layer):
    """Head with the table of an embedding, and its own trained scale."""

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


def tied(dtype=None, **options):
    embedding = TokenEmbedding(11, 8, dtype=dtype)
    return PerformerLM(
        embedding=embedding, head=TiedHead(embedding), dtype=dtype, **options
    )


def with_gains(model):
    """Assigns gains of far keys and scales of `qk_norm` in all heads and blocks."""
    for block in model.blocks:
        block.attention.assign_log_gain([-1.0, 0.5])
        if block.attention.qk_norm:
            block.attention.query_key_norm.log_scale.assign([0.5, 1.5])


def lora(model):
    block = model.blocks[0]
    for layer in (block.attention.query_dense, block.expand, model.embedding):
        layer.enable_lora(2)


def frozen(model):
    model.blocks[0].trainable = model.norm.trainable = False


def regularized(model):
    model.blocks[0].expand.kernel.regularizer = keras.regularizers.L2(0.1)


def window(size, **options):
    return dict(exact_window=size, prepare=with_gains, num_layers=1, **options)


BOTH_SIDES, RELU = dict(causal=False), dict(feature_map="relu")
ROTARY = dict(position_embedding="rotary", position_shape=(8, 2), qk_norm=True)
# Chunks of 4 tokens: with a rest of 3 tokens, without a rest, and a single chunk.
GRADIENTS = {
    "rest": ("block", dict(forget_gate=True)),
    "network": ("network", {}),
    "no rest": ("network", dict(length=8, **RELU)),
    # with a convolution that is longer than chunks
    "one chunk": ("network", dict(length=3, conv_kernel_size=7, **RELU)),
    "convolution": ("block", dict(conv_kernel_size=7, **RELU)),
    "both sides": ("block", dict(**BOTH_SIDES, **RELU)),
    # windows that reach beyond the next chunk, or only into it
    "several chunks": ("block", window(10, **BOTH_SIDES)),
    "next chunk": ("block", window(3, length=8, **BOTH_SIDES, **ROTARY)),
    "past": ("network", window(4, conv_kernel_size=2, forget_gate=True, **ROTARY)),
    "rotary": ("block", dict(num_layers=1, **ROTARY)),
    "none": ("network", dict(attention="none")),
    "several": ("network", KINDS["several"]),
    "several by block": ("block", KINDS["several"]),
    "embedding": ("network", dict(cls=pairs, dtype="float32")),
    "lora": ("block", dict(prepare=lora)),
    "frozen": ("network", dict(prepare=frozen)),
    "regularized": ("block", dict(prepare=regularized)),
    "tied": ("network", dict(cls=tied, dtype="float32")),
    "tied bfloat16": ("block", dict(cls=tied, dtype="mixed_bfloat16")),
    "unprojected": ("network", dict(feature_map="sigmoid", num_random_features=None)),
}


def gradients(recompute, length=11, dtype="float64", **options):
    keras.config.set_floatx("float64" if dtype == "float64" else "float32")
    model = small_model(recompute, dtype=dtype, **options)
    return loss_and_gradients(model, IDS[:, :length], TARGETS[:, :length])


@pytest.mark.slow
@pytest.mark.parametrize("recompute, options", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_are_those_of_plain_training(recompute, options):
    expected = gradients(None, **options)
    tolerance = 3e-2 if options.get("dtype") == "mixed_bfloat16" else None
    assert_close(gradients(recompute, **options), expected, tolerance)
    if options.get("prepare") in (None, with_gains):
        assert all(np.abs(gradient).max() > 0 for gradient in expected[1])


# Repeated tokens: an optimizer must sum their gradients before it squares them.
REPEATED = RANDOM.integers(0, 3, (2, 4, 8))


def a_whole_training(recompute, jit_compile):
    """Trains with redraws, and returns losses, metrics and weights."""
    keras.config.set_floatx("float64")
    # tests of gradients have more blocks
    model = small_model(recompute, num_layers=1, dtype="float64", **RELU)
    optimizer = keras.optimizers.Adam(0.01, clipnorm=0.01)
    options = dict(metrics=["accuracy"], jit_compile=jit_compile)
    model.compile(optimizer, model.loss, **options)
    ids, targets = REPEATED
    data = dict(x=ids, y=targets, sample_weight=WEIGHTS[:, :8], batch_size=2)
    options = dict(shuffle=False, verbose=0, callbacks=[RedrawFeatures(2)])
    history = model.fit(epochs=2, **data, **options).history
    assert int(model.blocks[0].attention.redraw_count.numpy()) == 2
    assert {"loss", "accuracy"} == set(history)
    return [*history.values(), *model.get_weights()]


@pytest.mark.slow
def test_fit_is_plain_keras():
    results = a_whole_training("network", jit_compile=True)
    for found, wanted in zip(results, a_whole_training(None, False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("recompute, causal", [("network", True), ("block", False)])
def test_a_chunk_that_is_computed_again_drops_the_same(recompute, causal):
    """The gradient with dropout is the slope of the loss for equal seeds."""
    keras.config.set_floatx("float64")
    model = small_model(recompute, dropout=0.3, causal=causal, dtype="float64")
    weights = {id(w) for w in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    start = [v.numpy() for v in seeds]
    assert len(seeds) == 5  # one for the embedding, two for each block

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
    # other seeds drop other values
    assert float(loss_and_gradients(model)[0]) != pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    "options, mask",
    [
        ({}, np.arange(11) < [[11], [6], [9], [1]]),
        (dict(exact_window=3, **BOTH_SIDES), np.arange(11) < [[11], [6], [9], [1]]),
        (dict(**ROTARY, **BOTH_SIDES), np.arange(11) >= [[0], [4], [2], [7]]),
        # one row for all sequences
        (BOTH_SIDES, np.arange(11)[np.newaxis] < 6),
    ],
)
def test_a_custom_loop_may_call_the_model(options, mask):
    """`recompute="block"` also works there, with masks."""

    def outputs_and_gradients(recompute):
        model = small_model(recompute, num_layers=1, **options)
        with tf.GradientTape() as tape:
            logits = model(IDS, mask=mask, training=True)
            loss = tf.reduce_sum(logits**2)
        gradients = tape.gradient(loss, model.trainable_weights)
        return loss, [logits, *map(tf.convert_to_tensor, gradients)]

    assert_close(outputs_and_gradients("block"), outputs_and_gradients(None))


def test_a_call_that_returns_a_state_may_have_segments():
    """It computes nothing again, so it takes what a plain model takes."""
    call = dict(segment_ids=IDS // 6, training=True)
    model = small_model("block")
    found = model(IDS, return_state=True, **call)
    assert_close(found, small_model()(IDS, return_state=True, **call))
    with pytest.raises(ValueError, match="one segment in each row"):
        model(IDS, **call)


@functools.cache
def of_dtype(dtype, recompute=None):
    return loss_and_gradients(small_model(recompute, dtype=dtype))


@pytest.mark.parametrize("recompute", MODES)
def test_bfloat16_is_as_far_from_float32_as_without(recompute):
    _, exact = of_dtype("float32")
    loss, gradients = of_dtype("mixed_bfloat16", recompute)
    wanted, expected = of_dtype("mixed_bfloat16")

    def distance(gradients):
        return [
            np.linalg.norm(g - e) / np.linalg.norm(e)
            for g, e in zip(gradients, exact)
            if np.abs(e).max() > 1e-4
        ]

    plain, chunked = distance(expected), distance(gradients)
    assert 1e-3 < np.median(plain) < 0.1
    assert np.median(chunked) < 1.2 * np.median(plain)
    assert np.max(chunked) < 1.2 * np.max(plain)
    # weights of logits are float32; sums of chunks in bfloat16 would be 1e-3 away
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for result, gradient in zip(gradients[-2:], expected[-2:]):
        np.testing.assert_allclose(result, gradient, atol=1e-6)


@pytest.mark.slow
def test_chunks_so_long_that_attention_is_compiled(two_threads, monkeypatch):
    """`PerformerAttention` in a graph compiles long chunks inside the loop."""
    monkeypatch.setattr(performer, "MIN_COMPILED_LENGTH", 5)
    # chunks cannot have equal sizes: 6, 6 and 5
    ids, targets = RANDOM.integers(0, 11, (2, 1, 17))
    options = dict(max_length=20, chunk_size=6, num_layers=1, feature_map="relu")
    model = small_model("network", **options)
    step = tf.function(lambda: loss_and_gradients(model, ids, targets))
    functions = step.get_concrete_function().graph.as_graph_def().library.function
    assert any(f.attr["_XlaMustCompile"].b for f in functions)
    expected = loss_and_gradients(small_model(**options), ids, targets)
    assert_close(step(), expected)


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


def regularize_outputs(layer):
    """Keras would regularize chunks of outputs, or would not call the regularizer."""
    layer.activity_regularizer = keras.regularizers.L2(0.1)


@pytest.mark.parametrize("recompute", MODES)
@pytest.mark.parametrize(
    "message, make",
    [
        ("Received: 1 losses", lambda: dict(embedding=AddsALoss(11, 8))),
        (r"updates of \['.*counts.*/variable'", lambda: dict(head=Counts(11))),
        (
            "an activity regularizer",
            lambda: dict(prepare=lambda x: regularize_outputs(x.blocks[1].expand)),
        ),
    ],
)
def test_what_chunks_would_lose_is_refused(recompute, message, make):
    model = small_model(recompute, causal=recompute == "network", **make())
    with pytest.raises(ValueError, match=message):
        model.fit(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize(
    "recompute, layer_of",
    [
        ("network", lambda model: model),
        ("block", lambda model: model),
        ("block", lambda model: model.blocks[1]),
        ("block", lambda model: model.blocks[1].attention),
    ],
)
def test_layers_in_chunks_have_no_activity_regularizer(recompute, layer_of):
    model = small_model(recompute, causal=recompute == "network")
    layer = layer_of(model)
    regularize_outputs(layer)
    cannot = "cannot have an activity regularizer.*with activity_reg"
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=f"{type(layer).__name__} {cannot}"):
            method(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize("recompute", MODES)
def test_sequences_and_targets_that_do_not_fit_are_refused(recompute):
    model = small_model(recompute)
    # refused before they are cut, as XLA leaves out checks of values
    long = np.zeros((2, 20), "int32")
    with pytest.raises(ValueError, match="at most max_length=16 .*2, 20"):
        model.fit(long, long, verbose=0)
    # targets are not cut to the inputs' length, and no TensorFlow operation fails
    message = r"y must have a target for each token .*\(4, 11, .*Received: .*\(4,"
    for method in (model.fit, model.evaluate):
        for shape in ((4, 14), (4, 9), (4, 9, 1), (4,)):
            with pytest.raises(ValueError, match=message):
                method(IDS, np.zeros(shape, "int32"), verbose=0)


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


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_another_length_after_compiling_again(method, uncompiled):
    model = small_model("network", attention="none", num_layers=1)
    model.run_eagerly = False
    run = getattr(model, method)
    run(IDS, TARGETS, verbose=0)
    short = IDS[:, :9], TARGETS[:, :9]
    message = "known length.* compile the model again before you fit another length"
    with pytest.raises(ValueError, match=message):
        run(*short, verbose=0)
    steps = int(model.optimizer.iterations)
    model.compile(model.optimizer, model.loss)
    run(*short, verbose=0)
    assert int(model.optimizer.iterations) == steps + (method == "fit")
