"""`jit_compile` of PerformerAttention: the same numbers, compiled where it says."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.feature_maps import SoftmaxFeatures
from keras_performer.layers import LocalAttention, performer
from keras_performer.ops import blocks
from keras_performer.zoo import LongformerAttention
from tests.layers.inputs import normal, small_layer, twin, value_and_gradients

LENGTH = performer.MIN_COMPILED_LENGTH


def compiled_functions(graph):
    """Names of the functions of a graph that are to be compiled."""
    functions = graph.as_graph_def().library.function
    return [f.signature.name for f in functions if f.attr["_XlaMustCompile"].b]


def traced(layer, known=LENGTH, training=True):
    """Whether the graph of a call holds a function that is to be compiled."""
    layer.build((None, None, 3))
    spec = tf.TensorSpec((None, known, 3))
    graph = tf.function(lambda x: layer(x, training=training))
    return bool(compiled_functions(graph.get_concrete_function(spec).graph))


@pytest.mark.slow
@pytest.mark.parametrize(
    "causal, masked, eager", [(True, False, False), (False, True, True)]
)
def test_compiled_equals_plain(causal, masked, eager, monkeypatch):
    sizes = blocks.ON_CPU._replace(max_tokens=32)  # three of them
    monkeypatch.setattr(blocks, "ON_CPU", sizes)
    x = normal((2, 70, 3), seed=2)
    mask = np.random.default_rng(3).random((2, 70)) < 0.7 if masked else None
    options = {"causal": causal, "chunk_size": 16}
    layer = small_layer(jit_compile=True, **options)
    layer.build(x.shape)
    results = []
    for one in (layer, twin(layer, x, jit_compile=False, **options)):

        def step(x):
            return value_and_gradients(one, x, query_mask=mask, training=True)

        step = step if eager else tf.function(step)
        results.append(tf.nest.flatten(step(x)))
    for jitted, plain in zip(*results):
        scale = np.abs(plain).max()
        assert scale > 0
        np.testing.assert_allclose(jitted, plain, rtol=0, atol=3e-6 * scale)


def test_auto_compiles_long_training_steps_of_known_length_only(two_threads):
    assert traced(small_layer())
    assert not traced(small_layer(), known=LENGTH - 1)
    assert not traced(small_layer(), known=None)
    assert not traced(small_layer(), training=False)
    assert not traced(small_layer(jit_compile=False))
    assert traced(small_layer(jit_compile=True), known=None, training=False)


@pytest.mark.parametrize(
    "threads, gpus, expected",
    [(1, [], 1), (2, [], 1), (4, [], 1), (5, [], 0), (16, ["GPU:0"], 1)],
)
def test_auto_compiles_for_few_threads_or_a_gpu(monkeypatch, threads, gpus, expected):
    monkeypatch.setattr(
        tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads
    )
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    assert traced(small_layer()) == bool(expected)
    if not expected:
        assert traced(small_layer(jit_compile=True))


@pytest.mark.parametrize("gpus", [[], ["GPU:0"]])
def test_auto_compiles_a_window_alone_on_gpus(monkeypatch, two_threads, gpus):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    for kind in LocalAttention, LongformerAttention:
        assert traced(kind(2, 4, sliding_window=8)) == bool(gpus)


@pytest.mark.parametrize(
    "version, gpus, expected",
    [("2.20.0", [], 0), ("2.21.0-rc1", [], 1), ("3.0.0", [], 1)]
    + [("2.19.1", ["GPU:0"], 1)],
)
def test_auto_compiles_causal_attention_on_cpus_from_tensorflow_2_21_on(
    monkeypatch, two_threads, version, gpus, expected
):
    monkeypatch.setattr(tf, "__version__", version)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    assert traced(small_layer(causal=True)) == bool(expected)
    if not expected:
        assert traced(small_layer(causal=True, jit_compile=True))
        assert traced(small_layer())


def test_threads_are_the_cores_at_hand_unless_set(monkeypatch):
    threading = tf.config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 5)
    assert performer.cpu_threads() == 5
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6}, raising=False)
    assert performer.cpu_threads() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert performer.cpu_threads() == 7


def test_auto_leaves_eager_calls_and_strategies_alone(two_threads):
    attention = small_layer()
    x = tf.zeros((1, LENGTH, 3))
    eager = "auto", x, x, True
    assert not performer.should_compile(*eager, on_cpu=lambda: True)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert not traced(attention)


def test_layers_with_equal_options_share_what_is_compiled():
    def number(*all_options):
        layers = [small_layer(jit_compile=True, **options) for options in all_options]
        stack = keras.Sequential(layers)
        stack.build((None, 7, 3))
        spec = tf.TensorSpec((2, 7, 3))
        graph = tf.function(stack).get_concrete_function(spec).graph
        return len(compiled_functions(graph))

    relu = {"feature_map": "relu"}
    assert number(relu, relu, relu) == 1
    assert number(relu, {"feature_map": "elu"}, {**relu, "causal": True}) == 3


def test_a_call_that_is_not_compiled_shares_nothing_with_one_that_is():
    x = normal((1, 7, 2, 3), 1)

    def both(x):
        return [
            ops.bidirectional_attention(x, x, x, ops.TaylorKernel(), jit_compile=jit)
            for jit in (True, False)
        ]

    graph = tf.function(both).get_concrete_function(tf.constant(x)).graph
    names = [f.signature.name for f in graph.as_graph_def().library.function]
    assert len(compiled_functions(graph)) == 1
    assert len([name for name in names if "run" in name]) == 2


def test_training_compiles_two_passes_and_copies_no_inputs():
    layers = [small_layer(jit_compile=True, feature_map="relu") for _ in range(3)]
    stack = keras.Sequential(layers)
    stack.build((None, 7, 3))
    step = tf.function(lambda x: value_and_gradients(stack, x, training=True))
    graph = step.get_concrete_function(tf.TensorSpec((2, 7, 3))).graph
    library = graph.as_graph_def().library.function
    names = compiled_functions(graph)
    signatures = [f.signature for f in library if f.signature.name in names]
    # attended values, stabilizer, sums, normalizers; three gradients
    assert sorted(len(s.output_arg) for s in signatures) == [3, 4]


def test_functions_are_inline_unless_a_tape_records():
    """LiteRT converts inline ones only; others start sooner."""
    stack = keras.Sequential([small_layer(jit_compile=False, causal=True)] * 2)
    stack.build((None, 7, 3))

    def inline(function):
        graph = tf.function(function).get_concrete_function(tf.TensorSpec((2, 7, 3)))
        library = graph.graph.as_graph_def().library.function
        return [not f.attr["_noinline"].b for f in library if "run" in f.signature.name]

    assert inline(stack) == [True]
    trained = inline(lambda x: value_and_gradients(stack, x, training=True))
    assert trained == [False, False]  # forward and backward


def test_a_redraw_reaches_the_compiled_function():
    x = normal((1, 33, 3), seed=7)
    layer = small_layer(jit_compile=True)
    graph = tf.function(layer)
    before = graph(x)
    plain = twin(layer, x, jit_compile=False)
    for one in (layer, plain):
        one.redraw_features()
    assert np.abs(graph(x) - before).max() > 1e-3
    np.testing.assert_allclose(graph(x), plain(x), rtol=1e-5, atol=1e-6)


def test_inside_a_compiled_function():
    attention = small_layer(jit_compile=True, causal=True, feature_map="relu")
    x = tf.random.stateless_normal((1, 33, 3), seed=(0, 4))
    plain = attention(x)
    inside = tf.function(attention, jit_compile=True)(x)
    np.testing.assert_allclose(inside, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_plain_model_trains_compiled_and_exports_plain(
    tmp_path, two_threads, monkeypatch
):
    monkeypatch.setattr(performer, "MIN_COMPILED_LENGTH", 40)
    x, y = np.random.default_rng(5).standard_normal((2, 6, 40, 3)).astype("float32")
    losses = []
    for jit_compile in ("auto", False):
        keras.utils.set_random_seed(6)
        options = dict(jit_compile=jit_compile, causal=True, feature_map="relu")
        model = keras.Sequential([keras.Input((40, 3)), small_layer(**options)])
        model.compile("adam", "mse", jit_compile=jit_compile)
        # 4 and then 2 rows: two batch sizes of one length
        history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False)
        losses.append(history.history["loss"])
        if jit_compile == "auto":
            model.export(tmp_path / "model", verbose=False)
            predicted = model.predict(x, verbose=0)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][2] < losses[0][0]
    loaded = tf.saved_model.load(tmp_path / "model")
    assert not compiled_functions(loaded.signatures["serve"].graph)
    np.testing.assert_allclose(loaded.serve(x), predicted, rtol=1e-4, atol=1e-5)


def test_a_wrong_value_is_refused():
    with pytest.raises(ValueError, match='jit_compile must be True, False or "auto"'):
        small_layer(jit_compile="always")


def test_a_feature_map_that_cannot_be_shared_is_refused():
    class Weighted(SoftmaxFeatures):
        def __init__(self):
            super().__init__()
            self.weights = [1.0]

    with pytest.raises(TypeError, match="hashable.*jit_compile=False.*Weighted"):
        small_layer(feature_map=Weighted())
    small_layer(feature_map=Weighted(), jit_compile=False)
